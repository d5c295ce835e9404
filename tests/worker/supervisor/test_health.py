"""Health over HTTP, and what systemd is told: first the answers, then a real worker."""

from __future__ import annotations

import asyncio
import configparser
import http.client
import json
import re
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast import Holdfast
from holdfast.cli.worker import worker as worker_command
from holdfast.core.durations import duration_ms
from holdfast.core.task import State
from holdfast.errors import BadOption
from holdfast.testing.clock import SteppedClock
from holdfast.worker.options import health_address
from holdfast.worker.supervisor import health
from holdfast.worker.supervisor.health import MAX_REQUEST_BYTES, HealthServer, Systemd, WorkerHealth
from tests.support import ROOT, WorkerProcess, eventually, run_holdfast, run_worker
from tests.worker.helpers import APP, enqueue, in_state, working
from tests.worker.test_outage import outage


class FakeHealth:
    """A health that the test sets."""

    illness = ""

    def unhealthy(self) -> str:
        return self.illness

    def not_ready(self) -> str:
        return "draining"

    def status(self) -> str:
        return f"not ready: {self.illness or 'draining'}"


# -- what is a reason --------------------------------------------------------------------------------------


def health_of(clock: SteppedClock, *children: Any) -> tuple[WorkerHealth, Any, Any]:
    pool = SimpleNamespace(
        children=lambda: children,
        closed=False,
        drained=False,
        reserved_at_ms=None,
        concurrency=SimpleNamespace(current=10),
    )
    heartbeat = SimpleNamespace(succeeded_at_ms=clock.monotonic_ms())
    return WorkerHealth(60_000, clock, cast("Any", pool)), pool, heartbeat


def child(running: int = 0, *, alone: bool = False) -> Any:
    return SimpleNamespace(running=running, alone=alone)


def test_it_is_ready_once_a_reserve_succeeded_and_until_none_did_for_too_long() -> None:
    clock = SteppedClock()
    about, pool, heartbeat = health_of(clock, child())
    assert about.not_ready() == "starting"
    about.opened(heartbeat)
    assert about.not_ready() == "no reserve has succeeded yet"
    pool.reserved_at_ms = clock.monotonic_ms()
    assert about.not_ready() == ""
    clock.advance(60_001)
    assert about.not_ready() == "no reserve has succeeded for 1m"
    assert about.status().startswith("not ready: no reserve")
    pool.closed = True
    assert about.not_ready() == "draining"


@pytest.mark.parametrize(
    ("busy", "ready"), [(child(10), True), (child(9), False), (child(1, alone=True), True), (child(alone=True), False)]
)
def test_a_full_worker_is_ready_while_its_heartbeats_succeed(busy: Any, ready: bool) -> None:
    clock = SteppedClock()
    about, pool, heartbeat = health_of(clock, busy)
    about.opened(heartbeat)
    pool.reserved_at_ms = clock.monotonic_ms()
    clock.advance(100_000)
    heartbeat.succeeded_at_ms = clock.monotonic_ms()
    assert (about.not_ready() == "") is ready
    clock.advance(60_001)
    assert about.not_ready() != ""


def test_it_is_sick_while_no_child_runs_but_not_at_its_end() -> None:
    about, pool, _ = health_of(SteppedClock())
    assert about.unhealthy()
    pool.closed = True
    assert not about.unhealthy()
    assert not health_of(SteppedClock(), child())[0].unhealthy()


# -- over HTTP ---------------------------------------------------------------------------------------------


def exchange(scenario: Callable[[int], Awaitable[None]], about: FakeHealth | None = None) -> None:
    async def run() -> None:
        server = HealthServer("127.0.0.1:0", cast("Any", about or FakeHealth()))
        async with server:
            assert server._server is not None
            await scenario(server._server.sockets[0].getsockname()[1])

    asyncio.run(run())


async def said(port: int, request: bytes, *, ends: bool = False) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    if ends:
        writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_line", "status", "answer"),
    [
        ("GET /healthz HTTP/1.1", 200, {"status": "ok"}),
        ("GET /healthz?verbose HTTP/1.0", 200, {"status": "ok"}),
        ("GET /readyz HTTP/1.1", 503, {"status": "no", "reason": "draining"}),
        ("GET / HTTP/1.1", 404, None),
        ("GET /healthz/../metrics HTTP/1.1", 404, None),
        ("POST /healthz HTTP/1.1", 405, None),
        ("HEAD /readyz HTTP/1.1", 405, None),
        ("\x16\x03\x01\x02", 404, None),
    ],
)
def test_answers(request_line: str, status: int, answer: dict[str, str] | None) -> None:
    async def scenario(port: int) -> None:
        got = await said(port, f"{request_line}\r\nHost: x\r\n\r\n".encode("latin-1"))
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert b"Content-Length: %d\r\n" % len(body) in head
        assert body.count(b"\n") == 1
        if answer is not None:
            assert json.loads(body) == answer

    exchange(scenario)


def test_slow_huge_and_broken_requests_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "REQUEST_TIMEOUT_S", 0.2)

    async def scenario(port: int) -> None:
        assert await said(port, b"GET /healthz HTTP/1.1\r\nslow: ") == b""
        assert await said(port, b"GET /healthz HTTP/1.1\r\nlong: " + b"x" * 3 * MAX_REQUEST_BYTES) == b""
        assert await said(port, b"GET /hea", ends=True) == b""
        assert b"200 OK" in await said(port, b"GET /healthz HTTP/1.1\r\n\r\n")

    exchange(scenario)


def test_many_connections_that_say_nothing_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MAX_CONNECTIONS", 3)

    async def scenario(port: int) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await asyncio.sleep(0)
        assert await said(port, b"") == b""
        for _, writer in silent:
            writer.close()

    exchange(scenario)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8080", ("127.0.0.1", 8080)),
        (":8080", ("127.0.0.1", 8080)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:8080", ("::1", 8080)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert health_address(text) == address


@pytest.mark.parametrize("text", ["", "here", "localhost", "localhost:", "1:65536", "::1:80", "host:-1", "host:٣"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match=r"write 127\.0\.0\.1:8080"):
        health_address(text)


# -- a real worker -----------------------------------------------------------------------------------------


def asked(port: int, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def port_of(worker: WorkerProcess) -> int:
    found = eventually(lambda: re.search(r"health: http://127\.0\.0\.1:(\d+)/", worker.output()), 20)
    assert found is not None
    return int(found[1])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


def test_a_worker_tells_of_its_health_until_its_end(jobs: Holdfast, url: str) -> None:
    with working(url, "--health", "0", "--grace", "60s") as worker:
        port = port_of(worker)
        assert asked(port, "/healthz") == (200, {"status": "ok"})
        eventually(lambda: asked(port, "/readyz") == (200, {"status": "ok"}), 20)
        task = enqueue(jobs, "sleeps", 600.0)
        in_state(task, State.CLAIMED)
        worker.signal(signal.SIGTERM)
        eventually(lambda: asked(port, "/readyz") == (503, {"status": "no", "reason": "draining"}), 20)
        assert asked(port, "/healthz")[0] == 200
        worker.signal(signal.SIGTERM)
        worker.process.wait(20)


def test_a_worker_whose_store_does_not_answer_is_not_ready(jobs: Holdfast, url: str, tmp_path: Path) -> None:
    with working(url, "--health", "0", "--ready-within", "3s") as worker:
        port = port_of(worker)
        eventually(lambda: asked(port, "/readyz")[0] == 200, 20)
        jobs.close()
        with outage(url, tmp_path):
            status, answer = eventually(lambda: (got := asked(port, "/readyz"))[0] == 503 and got, 60) or (0, {})
            assert (status, answer["reason"].startswith("no reserve has succeeded for ")) == (503, True)
            assert asked(port, "/healthz")[0] == 200
        eventually(lambda: asked(port, "/readyz")[0] == 200, 60)


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run_holdfast("worker", APP, "--health", str(port), url=f"sqlite:///{tmp_path}/tasks.db")
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"holdfast: health: cannot listen on {port}: ")
    assert ended.stderr.count("\n") == 1


# -- systemd -----------------------------------------------------------------------------------------------


@contextmanager
def listener(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.settimeout(20)
        yield receiver


def heard(receiver: socket.socket, word: str) -> str:
    """The first message that begins with this word."""
    while not (text := receiver.recv(4096).decode()).startswith(word):
        continue
    return text


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_of_start_health_and_end(tmp_path: Path, abstract: bool) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    name = str(tmp_path / "notify")
    given = {"NOTIFY_SOCKET": f"@{name}" if abstract else name, "WATCHDOG_USEC": "200000"}
    with listener(f"\0{name}" if abstract else name) as systemd, run_worker(APP, url, env=given) as worker:
        assert heard(systemd, "READY=1") == "READY=1"
        assert heard(systemd, "WATCHDOG=1") == "WATCHDOG=1"
        assert heard(systemd, "STATUS=ready") == "STATUS=ready; tasks running: 0"
        assert worker.stop() == 0
        assert heard(systemd, "STOPPING=1").startswith("STOPPING=1\n")


def test_the_watchdog_is_fed_only_while_the_worker_is_well(tmp_path: Path) -> None:
    about = FakeHealth()
    about.illness = "no child runs"

    async def scenario(systemd: socket.socket) -> None:
        telling = asyncio.create_task(
            Systemd(str(tmp_path / "notify"), watchdog_s=0.02).keep_informed(cast("Any", about))
        )
        first = await asyncio.to_thread(systemd.recv, 4096)
        about.illness = ""
        second = await asyncio.to_thread(systemd.recv, 4096)
        telling.cancel()
        assert (first, second) == (b"STATUS=not ready: no child runs", b"WATCHDOG=1")

    with listener(str(tmp_path / "notify")) as systemd:
        asyncio.run(scenario(systemd))


def test_without_systemd_nothing_is_sent_and_a_socket_that_is_gone_does_no_harm(tmp_path: Path) -> None:
    for address in (None, str(tmp_path / "nobody")):
        notifier = Systemd(address)
        notifier.ready()
        notifier.stopping()
    asyncio.run(Systemd(None).keep_informed(cast("Any", FakeHealth())))


def test_the_sockets_of_systemd_are_not_for_the_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/somewhere")
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")  # meant for another process
    systemd = Systemd.from_environment()
    assert (systemd._address, systemd._watchdog_s) == ("/somewhere", None)
    assert Systemd.from_environment()._address is None


def test_the_example_of_a_unit_file_fits_the_worker() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(ROOT / "examples" / "systemd" / "holdfast-worker.service")
    service = unit["Service"]
    command, name, *arguments = service["ExecStart"].split()
    assert (command.endswith("/holdfast"), name) == (True, "worker")
    given = worker_command.make_context(name, arguments).params  # refuses what it does not know
    assert given["grace_ms"] + 1_000 < duration_ms(service["TimeoutStopSec"])
    assert (service["Type"], service["KillMode"], service["OOMPolicy"]) == ("notify", "mixed", "continue")
    assert duration_ms(service["WatchdogSec"]) >= 2_000
    # A worker that meets a refused login at its start ends with 2, and must be started again.
    assert service["Restart"] == "on-failure"
    assert "RestartPreventExitStatus" not in service
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
