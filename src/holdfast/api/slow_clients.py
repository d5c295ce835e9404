"""Clients that are too slow are cut off: uvicorn waits for requests, and for answers to be read, as long as it takes.

Without this, a client that sends one byte of its headers a minute keeps a connection for ever, and one that never reads
keeps its answer in memory for ever. How long a body may take is said in bodies.py, where it is read.

A request may be answered before its body is here, because of its token for example. The rest of the body is read then,
and dropped: who is cut off while he sends does not get to see the answer.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from http import HTTPStatus
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.api.edge import MAX_HEAD_BYTES
from holdfast.api.headers import SECURITY_HEADERS
from holdfast.wire import problems
from holdfast.wire.limits import MAX_BATCH_BYTES
from holdfast.wire.problems import Kind

#: From the first byte of a request, or from the connection, to the end of its headers.
HEAD_SECONDS: Final = 10.0
#: An answer of which nothing was read for this long is not read any more.
READ_SECONDS: Final = 30.0
#: The rest of a body that has its answer is waited for, and read, no longer than this.
DROP_SECONDS: Final = 30.0
DROP_BYTES: Final = MAX_BATCH_BYTES
_LENGTHS: Final = frozenset({b"content-length", b"transfer-encoding"})
_NO_LINGERING: Final = struct.pack("ii", 1, 0)


class Impatient:
    """Gives one of uvicorn's protocols, which comes after it, an end to its patience."""

    cycle: Any
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    timeout_keep_alive: int
    timeout_keep_alive_task: asyncio.TimerHandle | None

    head_seconds: float = HEAD_SECONDS
    read_seconds: float = READ_SECONDS
    drop_seconds: float = DROP_SECONDS
    drop_bytes: int = DROP_BYTES
    #: Whether the head of a request is here, and its body is not, or not the whole of it.
    is_in_body: bool = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Never: addresses may have secrets in them.
        self.access_log = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._read_timer: asyncio.TimerHandle | None = None
        self._unread = 0
        self._drop_timer: asyncio.TimerHandle | None = None
        self._dropped_bytes = 0
        #: Whether everything is said, and nothing more will be listened to.
        self.is_parting = False

    # -- the head of a request --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Waits for the first request."""
        super().connection_made(transport)  # type: ignore[misc]  # as below: of the protocol
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Feeds the parser; afterwards a request is being answered, or its head is to come, or a body to be dropped."""
        if self.is_parting:
            self._drop(len(data))
            return
        was_in_body = self.is_in_body
        super().data_received(data)  # type: ignore[misc]
        if self.transport.is_closing() or self.is_answering:
            self._head_has_come()
            self._body_has_come()
            if self.is_in_body and self.cycle.transport is self.transport:
                self.cycle.transport = _Parting(self)
        elif self.is_in_body:
            self._drop(len(data))
        elif was_in_body:
            self._body_has_come()
            self._wait_for_next()
        else:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.refuse(problems.HEAD_TOO_LARGE)
            elif self._head_timer is None:
                self._expect_head()

    def on_response_complete(self) -> None:
        """Waits for the next request; how long is uvicorn's own to say."""
        super().on_response_complete()  # type: ignore[misc]
        self._head_has_come()
        if self.is_in_body and not self.is_answering and not self.transport.is_closing():
            self._expect_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for."""
        self._head_has_come()
        self._body_has_come()
        self._is_read()
        super().connection_lost(exc)  # type: ignore[misc]

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is answered as everything else."""
        del msg
        self.refuse(problems.NO_HTTP)

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
            self.refuse(problems.TOO_SLOW)
        else:
            self.transport.close()

    @property
    def is_answering(self) -> bool:
        """Whether there is a request that has no answer yet, or not the whole of it."""
        return self.cycle is not None and not self.cycle.response_complete

    def refuse(self, kind: Kind) -> None:
        """Answers what is no request, or none that is taken, and reads nothing more."""
        self._head_has_come()
        if self.is_answering and self.cycle.response_started:
            self.transport.close()  # nothing may be said in the middle of an answer
            return
        body = problems.write_problem(kind.problem())
        phrase = HTTPStatus(kind.status).phrase.encode()
        head = [b"HTTP/1.1 %d %b" % (kind.status, phrase), *(b"%b: %b" % header for header in SECURITY_HEADERS)]
        head += [b"content-type: %b" % problems.MEDIA_TYPE.encode(), b"content-length: %d" % len(body)]
        self.transport.write(b"\r\n".join([*head, b"connection: close", b"", body]))
        self.transport.close()

    # -- a body that is not read ------------------------------------------------------------------------------

    def part(self) -> None:
        """Closes the connection, once the client has sent what it is sending."""
        if self.is_in_body and not self.transport.is_closing():
            self.is_parting = True
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self._expect_rest()
        else:
            self.transport.close()

    def _expect_rest(self) -> None:
        if self._drop_timer is None:
            self._drop_timer = self.loop.call_later(self.drop_seconds, self.transport.close)

    def _drop(self, count: int) -> None:
        self._dropped_bytes += count
        if self._dropped_bytes > self.drop_bytes:
            self.transport.close()

    def _body_has_come(self) -> None:
        self._dropped_bytes = 0
        if self._drop_timer is not None:
            self._drop_timer.cancel()
            self._drop_timer = None

    def _wait_for_next(self) -> None:
        """As uvicorn does after an answer; it has left off when the rest of the body came."""
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    # -- an answer that is not read ---------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client has more to read than it reads."""
        super().pause_writing()  # type: ignore[misc]
        self._unread = self.transport.get_write_buffer_size()
        self._read_timer = self._read_timer or self.loop.call_later(self.read_seconds, self._look_whether_it_reads)

    def resume_writing(self) -> None:
        """It has read."""
        self._is_read()
        super().resume_writing()  # type: ignore[misc]

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


class _Parting:
    """The transport of a request whose body is still to come: it is not closed under the hands of who sends it."""

    def __init__(self, protocol: Impatient) -> None:
        self._protocol = protocol
        transport = protocol.transport
        self.write = transport.write
        self.is_closing = transport.is_closing

    def close(self) -> None:
        self._protocol.part()


class _Unambiguous(h11.Connection):
    """Refuses a body whose length is said in two ways: whoever stands in front may have gone by the other one."""

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request) and {name for name, _ in event.headers} >= _LENGTHS:
            raise h11.RemoteProtocolError("Content-Length and Transfer-Encoding")
        return event


class ImpatientH11(Impatient, H11Protocol):
    """What is needed without httptools; h11 has limits of its own, and reads one request after the other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _Unambiguous(h11.SERVER, MAX_HEAD_BYTES)

    @property
    def is_in_body(self) -> bool:  # type: ignore[override]
        """Whether h11 waits for more of a body."""
        return self.conn.their_state is h11.SEND_BODY
