"""Bodies of 15 MiB from a token of one queue, while fifty workers of another token renew their leases.

Whatever the one token sends, the workers of the other are served: no renewal later than a third of the lease, no lease
lost, and the memory of the server stays within its limit.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any, Final

from tests.remote.holdfast_server import HoldfastServer, holdfast_server
from tests.server.setting import Client

WORKERS: Final = 50
SENDERS: Final = 8
BODY_BYTES: Final = 15 * 1024 * 1024
MAX_MEMORY_MB: Final = 400
_QUEUE, _OTHER = "evil", "good"
#: By their names: where each is sent, and what it is.
_Bodies = dict[str, tuple[str, bytes]]
_SEND: Final = f"/v1/queues/{_QUEUE}/tasks"


@dataclass
class Report:
    """What became of the workers, and of the server."""

    lease_seconds: float
    renewals: int = 0
    #: Renewals that were answered later than a third of the lease after they were due.
    late: int = 0
    slowest_seconds: float = 0.0
    #: Claims of which the server said that they are lost, or nothing at all.
    lost: int = 0
    memory_mb: float = 0.0
    #: How often each body was sent, and with which answer.
    sent: Counter[tuple[str, int]] = field(default_factory=Counter)

    @property
    def is_good(self) -> bool:
        """Whether all is as it should be."""
        return not self.late and not self.lost and self.memory_mb < MAX_MEMORY_MB

    def __str__(self) -> str:
        bodies: dict[str, list[str]] = {}
        for (name, status), count in sorted(self.sent.items()):
            bodies.setdefault(name, []).append(f"{count} x {status or 'cut off'}")
        lines = [f"  {name:<28} {', '.join(counts)}" for name, counts in bodies.items()]
        return "\n".join(
            [
                f"{sum(self.sent.values())} requests with bodies of {BODY_BYTES >> 20} MiB, or answers as long:",
                *lines,
                f"{self.renewals} renewals by {WORKERS} workers, lease {self.lease_seconds:g} s: {self.late} late, "
                f"{self.lost} lost, the slowest after {self.slowest_seconds:.2f} s",
                f"memory of the server: {self.memory_mb:.0f} MB at most (limit {MAX_MEMORY_MB} MB)",
            ]
        )


def run_load(store_url: str, directory: Path, seconds: float, lease_seconds: float) -> Report:
    """Sends for so long, and tells what became of the others."""
    with holdfast_server(directory, store_url) as server:
        report = Report(lease_seconds)
        token, admin = server.token(f"enqueue:{_QUEUE}", f"work:{_QUEUE}"), server.token("admin")
        other = server.token(f"work:{_OTHER}")
        _prepare(Client(server.port, admin))
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        # In a process of their own: here, they would hold up the workers themselves.
        process = multiprocessing.get_context("spawn").Process(
            target=_send_all, args=(server.port, token, seconds, theirs), daemon=True
        )
        process.start()
        try:
            assert ours.recv() == "ready"
            asyncio.run(_renew_all(server.port, other, report, ours))
            report.sent = ours.recv()
        finally:
            process.terminate()
            process.join(10)
        report.memory_mb = _peak_mb(server)
        return report


def _prepare(client: Client) -> None:
    """A task for each worker, and large ones for those who ask for them."""
    client.post("/v1/tasks", {"tasks": [{"type": "t", "queue": _OTHER}] * WORKERS})
    large = {"type": "large", "queue": _QUEUE, "arguments": {"x": "y" * 250_000}}
    for start in range(0, 200, 50):
        client.post("/v1/tasks", {"tasks": [{**large, "request_id": f"large-{start + n}"} for n in range(50)]})
    client.close()


def _peak_mb(server: HoldfastServer) -> float:
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    (peak_kb,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return peak_kb / 1024


# -- those who are to be served ----------------------------------------------------------------------------------


async def _renew_all(port: int, token: str, report: Report, senders: Connection) -> None:
    ended = asyncio.Event()
    workers = [asyncio.create_task(_renew(port, token, f"worker-{n}", report, ended)) for n in range(WORKERS)]
    senders.send("go")
    while not await asyncio.to_thread(senders.poll, 0.2):
        if any(worker.done() for worker in workers):
            break
    ended.set()
    await asyncio.gather(*workers)


async def _renew(port: int, token: str, name: str, report: Report, ended: asyncio.Event) -> None:
    """Claims a task, and renews the claim every third of its lease, until all is over."""
    third = report.lease_seconds / 3
    line = _Line(port, token)
    body = {"worker_id": name, "queues": [_OTHER], "lease": report.lease_seconds, "claim_id": name, "wait": 20}
    (task,) = (await line.post("/v1/reserve", body))["tasks"]
    due = time.monotonic()
    while not ended.is_set():
        due += third
        try:
            async with asyncio.timeout(max(0.0, due - time.monotonic())):
                await ended.wait()
        except TimeoutError:
            pass
        body = {"token": task["token"], "lease": report.lease_seconds}
        answer = await line.post(f"/v1/tasks/{task['task_id']}/extend", body)
        took = time.monotonic() - due
        report.renewals += 1
        report.late += took > third
        report.slowest_seconds = max(report.slowest_seconds, took)
        if not answer.get("held"):
            report.lost += 1
            return
    line.close()


class _Line:
    """One connection of a client that waits as long as it takes."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._head = f"Host: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        data = json.dumps(body).encode()
        writer.write(f"POST {path} HTTP/1.1\r\n{self._head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        (length,) = (int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length:"))
        answer: dict[str, Any] = json.loads(await reader.readexactly(length))
        return answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


# -- those who send ----------------------------------------------------------------------------------------------


def _bodies() -> _Bodies:
    """What is sent where, each of them as large as it may be, or asking for as much."""
    many = range(BODY_BYTES // 13)
    entries = b",".join(b'"%07d":""' % number for number in many)
    strings = b",".join(b'"t%07d"' % number for number in many)
    text = "y" * 245_000
    tasks = [{"type": "t", "arguments": {"x": text}, "request_id": f"r{number}"} for number in range(60)]
    payload = b64encode(json.dumps({"x": "y" * 180_000}).encode()).decode()
    ids = [f"{1:012x}{0:04x}{number:016x}" for number in range(60)]
    contract = [{"task_id": task_id, "type": "t", "queue": _QUEUE, "payload": payload} for task_id in ids]
    dense = b"[" + b"[]," * 80_000 + b"1]"
    nested = b",".join(b'{"type":"t","request_id":"d%d","arguments":{"x":%b}}' % (n, dense) for n in range(60))
    few = b",".join(b'"%04d":""' % number for number in range(1_500))
    headers = b",".join(b'{"type":"t","headers":{%b}}' % few for _ in range(900))
    reserve = {"worker_id": "w", "queues": [_QUEUE], "max_tasks": 1_000, "lease": "1m"}
    return {
        "header bomb": (_SEND, b'{"type":"t","headers":{%b}}' % entries),
        "headers of each task": (_SEND, b'{"tasks":[%b]}' % headers),
        "unknown fields": (_SEND, b"{%b}" % entries),
        "a list of numbers": (_SEND, b'{"tasks":[%b1]}' % (b"1," * (BODY_BYTES // 2 - 20))),
        "tasks": (_SEND, json.dumps({"tasks": tasks}).encode()),
        "tasks of small values": (_SEND, b'{"tasks":[%b]}' % nested),
        "tasks by the contract": ("/v1/store/enqueue", json.dumps({"tasks": contract}).encode()),
        "types": ("/v1/reserve", b'{"worker_id":"w","queues":["%b"],"types":[%b]}' % (_QUEUE.encode(), strings)),
        "a claim of large tasks": ("/v1/reserve", json.dumps({**reserve, "claim_id": "large"}).encode()),
        "large tasks": ("/v1/store/get", json.dumps({"task_ids": ids}).encode()),
        "a search": ("/v1/store/find", json.dumps({"query": {"queue": _QUEUE, "limit": 1_000}}).encode()),
    }


def _send_all(port: int, token: str, seconds: float, theirs: Connection) -> None:
    bodies = _bodies()
    sent: Counter[tuple[str, int]] = Counter()
    theirs.send("ready")
    theirs.recv()
    until = time.monotonic() + seconds
    senders = [Thread(target=_send, args=(port, token, bodies, n, until, sent), daemon=True) for n in range(SENDERS)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    theirs.send(sent)


def _send(
    port: int,
    token: str,
    bodies: dict[str, tuple[str, bytes]],
    number: int,
    until: float,
    sent: Counter[tuple[str, int]],
) -> None:
    names = list(bodies)
    while time.monotonic() < until:
        name = names[number % len(names)]
        number += 1
        path, body = bodies[name]
        sent[name, _status(port, token, path, body)] += 1


def _status(port: int, token: str, path: str, body: bytes) -> int:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        line.request("POST", path, body, head)
        response = line.getresponse()
        response.read()
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        line.close()
    return response.status
