"""One try at a call on a blocking socket, in the thread of a sync caller: it saves the way to an event loop and back.

Whatever is out of the ordinary ends the connection and the try; the caller then goes the long way with the same ids,
and finds what the try has done.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable
from typing import Final

from holdfast.stores.remote.http import Answer, AnswerReader, BadAnswer, EndedEarly
from holdfast.stores.remote.urls import RemoteSettings

#: So long may a try take that has another way after it, with a deadline of its own.
TRY_SECONDS: Final = 1.0
#: Connections that are kept; more threads than this may call at the same time.
_MOST_IDLE: Final = 32
_READ_BYTES: Final = 64 * 1024


class DirectLine:
    """Blocking connections to one gateway; each process has its own."""

    def __init__(self, settings: RemoteSettings, tls: Callable[[], ssl.SSLContext | None]) -> None:
        self._settings = settings
        self._tls = tls
        #: By process. What a parent left here stays untouched in its child: closing it would disturb him.
        self._idle: dict[int, list[socket.socket]] = {}
        self._closed = False

    def exchange(self, request: bytes, seconds: float) -> Answer | None:
        """The answer, or None if anything but an answer came."""
        idle = self._idle.setdefault(os.getpid(), [])
        line: socket.socket | None = None
        try:
            line = _popped(idle) or self._connected(seconds)
            line.settimeout(seconds)
            line.sendall(request)
            answer = _read(line)
        except (OSError, EndedEarly, BadAnswer):
            _end(line)
            return None
        except BaseException:  # An interrupt: the answer is still to come, and not for the next caller.
            _end(line)
            raise
        if answer.keeps and not self._closed and len(idle) < _MOST_IDLE:
            idle.append(line)
        else:
            _end(line)
        return answer

    def close(self) -> None:
        """Ends the connections of this process."""
        self._closed = True
        for line in self._idle.pop(os.getpid(), []):
            _end(line)

    def _connected(self, seconds: float) -> socket.socket:
        line = socket.create_connection((self._settings.host, self._settings.port), seconds)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = self._tls()
        return line if tls is None else tls.wrap_socket(line, server_hostname=self._settings.host)


def _popped(idle: list[socket.socket]) -> socket.socket | None:
    try:
        return idle.pop()
    except IndexError:  # not asked before: another thread may take the last one in between
        return None


def _read(line: socket.socket) -> Answer:
    answers = AnswerReader()
    while data := line.recv(_READ_BYTES):
        answer = answers.feed(data)
        if answer is not None:
            return answer
    return answers.end()


def _end(line: socket.socket | None) -> None:
    if line is not None:
        line.close()
