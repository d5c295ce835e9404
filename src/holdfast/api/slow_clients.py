"""Clients that are too slow are cut off: uvicorn waits for requests, and for answers to be read, as long as it takes.

Without this, a client that sends one byte of its headers a minute keeps a connection for ever, and one that never reads
keeps its answer in memory for ever. How long a body may take is said in bodies.py, where it is read.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from http import HTTPStatus
from typing import Any, Final

from holdfast.api.edge import MAX_HEAD_BYTES
from holdfast.api.headers import SECURITY_HEADERS
from holdfast.wire import problems
from holdfast.wire.problems import Kind

#: From the first byte of a request, or from the connection, to the end of its headers.
HEAD_SECONDS: Final = 10.0
#: An answer of which nothing was read for this long is not read any more.
READ_SECONDS: Final = 30.0
_NO_LINGERING: Final = struct.pack("ii", 1, 0)


def _protocol() -> type[Any]:
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol

        return H11Protocol
    return HttpToolsProtocol


class ImpatientProtocol(_protocol()):  # type: ignore[misc]  # one of two
    """uvicorn's protocol with an end to its patience."""

    head_seconds: float = HEAD_SECONDS
    read_seconds: float = READ_SECONDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Never: addresses may have secrets in them.
        self.access_log = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._read_timer: asyncio.TimerHandle | None = None
        self._unread = 0

    # -- the head of a request --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Waits for the first request."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Feeds the parser; afterwards either a request is being answered, or its head is still to come."""
        super().data_received(data)
        if self.transport.is_closing() or (self.cycle is not None and not self.cycle.response_complete):
            self._head_has_come()
        else:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(problems.HEAD_TOO_LARGE)
            elif self._head_timer is None:
                self._expect_head()

    def on_response_complete(self) -> None:
        """Waits for the next request; how long is uvicorn's own to say."""
        super().on_response_complete()
        self._head_has_come()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for."""
        self._head_has_come()
        self._is_read()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is answered as everything else."""
        del msg
        self._refuse(problems.NO_HTTP)

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self._too_slow)

    def _head_has_come(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if self._head_bytes:
            self._refuse(problems.TOO_SLOW)
        else:
            self.transport.close()

    def _refuse(self, kind: Kind) -> None:
        self._head_has_come()
        body = problems.write_problem(kind.problem())
        phrase = HTTPStatus(kind.status).phrase.encode()
        head = [b"HTTP/1.1 %d %b" % (kind.status, phrase), *(b"%b: %b" % header for header in SECURITY_HEADERS)]
        head += [b"content-type: %b" % problems.MEDIA_TYPE.encode(), b"content-length: %d" % len(body)]
        self.transport.write(b"\r\n".join([*head, b"connection: close", b"", body]))
        self.transport.close()

    # -- an answer that is not read ---------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client has more to read than it reads."""
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._read_timer = self._read_timer or self.loop.call_later(self.read_seconds, self._look_whether_it_reads)

    def resume_writing(self) -> None:
        """It has read."""
        self._is_read()
        super().resume_writing()

    def _look_whether_it_reads(self) -> None:
        self._read_timer = None
        unread = self.transport.get_write_buffer_size()
        if unread >= self._unread:
            # What the kernel holds for the client goes too, else it would be kept for as long as he likes.
            line = self.transport.get_extra_info("socket")
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
            self.transport.abort()
        else:
            self._unread = unread
            self._read_timer = self.loop.call_later(self.read_seconds, self._look_whether_it_reads)

    def _is_read(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
