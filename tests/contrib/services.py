"""Real servers of other frameworks, and requests to them."""

from __future__ import annotations

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
