"""A server that says what a test tells it to, byte for byte, and remembers what it was asked."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes
    #: Counts the connections, from 0.
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Peer:
    """The server's end of one connection."""

    def __init__(self, line: socket.socket, number: int, server: ScriptedServer) -> None:
        self._line = line
        self._file = line.makefile("rb")
        self._server = server
        self.number = number

    def asked(self) -> Asked:
        """The next request; `ConnectionError` when the client has gone."""
        head = [self._file.readline() for _ in range(1)]
        while head[-1] not in (b"\r\n", b""):
            head.append(self._file.readline())
        if head[-1] == b"":
            raise ConnectionError
        lines = [line.decode().rstrip("\r\n") for line in head[:-1]]
        headers = dict(line.split(": ", 1) for line in lines[1:])
        body = self._file.read(int(headers.get("content-length", "0")))
        request = Asked(lines[0], headers, body, self.number)
        self._server.requests.append(request)
        return request

    def send(self, data: bytes) -> None:
        self._line.sendall(data)

    def answer(self, body: bytes, status: str = "200 OK", *headers: str) -> None:
        """A whole answer with its length."""
        lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
        self.send("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body)

    def client_has_gone(self) -> bool:
        """Waits until the client closes the connection."""
        with contextlib.suppress(OSError):
            return self._file.read(1) == b""
        return True


Script = Callable[[Peer], None]


class ScriptedServer:
    """Runs the script on every connection, each in a thread; a connection ends with its script."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Asked] = []
        self._script = script
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lines: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            self._lines.append(line)
            thread = threading.Thread(target=self._serve, args=(line, len(self._lines) - 1), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, line: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), contextlib.closing(line):
            if self._tls is None:
                self._script(Peer(line, number, self))
                return
            with self._tls.wrap_socket(line, server_side=True) as wrapped:
                self._script(Peer(wrapped, number, self))


@contextmanager
def scripted(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    """A server that runs while the block does."""
    server = ScriptedServer(script, tls)
    try:
        yield server
    finally:
        server.close()


def always(body: bytes, status: str = "200 OK", *headers: str) -> Script:
    """Answers every request with this."""

    def script(peer: Peer) -> None:
        while True:
            peer.asked()
            peer.answer(body, status, *headers)

    return script


def silent(peer: Peer) -> None:
    """Hears what is asked, and says nothing."""
    peer.asked()
    peer.client_has_gone()
