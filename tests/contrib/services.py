"""Real servers of other frameworks, and requests to them."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import eventually


@contextmanager
def running(command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """This process, until the end of the block; what it printed is told if the block fails."""
    with log.open("wb") as sink:
        process = subprocess.Popen(command, env=dict(env), cwd=cwd, stdout=sink, stderr=subprocess.STDOUT)
    try:
        yield process
    except BaseException as error:
        error.add_note(f"output of {command[-1]}:\n{log.read_text(errors='replace')}")
        raise
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait(10)


class Service:
    """One that listens on this port of the loopback address."""

    def __init__(self, port: int) -> None:
        self._port = port

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        """Returns when it answers, or fails when its process has ended."""
        eventually(lambda: process.poll() is not None or self._answers(), 30, f"port {self._port}")
        assert process.poll() is None

    def call(
        self, method: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """The status and the document that it answers with."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            text = answer.read()
            is_json = "json" in (answer.getheader("Content-Type") or "")
            return answer.status, json.loads(text) if is_json else text
        finally:
            connection.close()

    def _answers(self) -> bool:
        try:
            self.call("GET", "/")
        except OSError:
            return False
        return True


def asked(service: Any, method: str, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    """The status and the document with which an ASGI app answers, called in this process."""
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    requests = [{"type": "http.request", "body": b"", "more_body": False}]

    async def main() -> None:
        ended = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if requests:
                return requests.pop()
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        try:
            await service(scope, receive, send)
        finally:
            ended.set()

    asyncio.run(main())
    text = b"".join(message.get("body", b"") for message in sent[1:])
    kinds = [value for name, value in sent[0]["headers"] if name == b"content-type"]
    return sent[0]["status"], json.loads(text) if kinds == [b"application/json"] else text
