"""Length-prefixed msgpack over a socket pair."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterator

import msgspec

from holdfast.worker.messages import FromChild, ToChild

_LENGTH = struct.Struct(">I")
#: A batch of claims is far smaller; anything larger is not one of our messages.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

_encoder = msgspec.msgpack.Encoder()
_from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)
_to_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)


def _frame(message: FromChild | ToChild) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def _body_length(header: bytes) -> int:
    length: int = _LENGTH.unpack(header)[0]
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes is not one of ours")
    return length


class ChildEnd:
    """The child's end: read by one thread, written by the event loop."""

    def __init__(self, connection: socket.socket) -> None:
        connection.set_inheritable(False)
        self._socket = connection
        self._incoming = connection.makefile("rb")
        self._turn = asyncio.Lock()

    def receive(self) -> ToChild | None:
        """The next message; blocks. None when the supervisor is gone."""
        with contextlib.suppress(ConnectionError):
            header = self._incoming.read(_LENGTH.size)
            if len(header) == _LENGTH.size:
                body = self._incoming.read(_body_length(header))
                return _to_child.decode(body) if len(body) == _body_length(header) else None
        return None

    def messages(self) -> Iterator[ToChild]:
        """All messages until the supervisor is gone; blocks."""
        while (message := self.receive()) is not None:
            yield message

    def send_blocking(self, message: FromChild) -> None:
        """For the time before there is an event loop."""
        self._socket.sendall(_frame(message))

    async def send(self, message: FromChild) -> None:
        """In the kernel's hands when it returns, so that a killed child has still said it.

        A supervisor that does not read holds up the reserving, not the tasks. One that is gone is noticed
        by the reading thread.
        """
        async with self._turn:
            with contextlib.suppress(ConnectionError):
                data = _frame(message)
                sent = self._send_some(data)
                if sent < len(data):
                    await asyncio.to_thread(self._socket.sendall, data[sent:])

    def close(self) -> None:
        """Lets go of the socket."""
        self._incoming.close()
        self._socket.close()

    def _send_some(self, data: bytes) -> int:
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0


class SupervisorEnd:
    """The supervisor's end of one child."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, connection: socket.socket) -> SupervisorEnd:
        """Takes over the socket."""
        return cls(*await asyncio.open_connection(sock=connection))

    async def messages(self) -> AsyncIterator[FromChild]:
        """All messages until the child is gone."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                header = await self._reader.readexactly(_LENGTH.size)
                yield _from_child.decode(await self._reader.readexactly(_body_length(header)))

    def send(self, message: ToChild) -> None:
        """Sends, or does nothing when the child is gone: its death is noticed elsewhere.

        Not awaited to the end: a stopped child must not hold up the heartbeats of the others, and what is
        sent to it is little.
        """
        if not self._writer.is_closing():
            self._writer.write(_frame(message))

    def close(self) -> None:
        """Lets go of the socket."""
        self._writer.close()
