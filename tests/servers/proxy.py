"""A line to a server that loses replies, is slow, goes dead or breaks: by count or by a seed, and it counts.

It reads the protocol of Redis, that of PostgreSQL with `wire=PostgresWire`, or none with `wire=AnyWire`, which is
enough for a slow or dead line, to an HTTP server too. A fault strikes one whole reply, after the server has carried out
the request. A reply that is dropped takes its connection with it, as a broken line does; in
a pipeline, the replies before it arrive and those behind it are lost too. Replies to what a client sends when it
connects are never counted or dropped, so that even `drop_every=2` leaves a line that can be used. Connections that
subscribe, monitor or replicate are passed through without counting.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.servers.loopback import HOST
from tests.servers.ports import server_port
from tests.servers.resp import RespWire
from tests.servers.wire import Reply, Wire

Answer = TypeVar("Answer")

_CHUNK_BYTES = 65_536
#: A narrow line passes data on in pieces of this size.
_PIECE_BYTES = 16_384


@dataclass(frozen=True)
class LineFaults:
    """How often each fault strikes a counted reply."""

    #: Every so-manieth reply is lost; 0 means none.
    drop_every: int = 0
    #: This share of the replies is lost, by the seed.
    drop_share: float = 0.0
    #: This share of the lost replies arrives in part.
    torn_share: float = 0.0
    #: Every reply waits for up to so long, by the seed.
    longest_delay_ms: int = 0
    #: How many bytes pass in a second in each direction, all connections together; 0 means as many as there are.
    bytes_per_second: int = 0
    #: Only replies to these commands count; None means all but the handshake.
    commands: frozenset[str] | None = None

    def counts(self, command: str, handshake: frozenset[str]) -> bool:
        """Whether replies to this command are counted and may be lost."""
        return command in self.commands if self.commands is not None else command not in handshake


@dataclass
class Struck:
    """What the line has done so far."""

    connections: int = 0
    requests: int = 0
    #: Replies to commands that count, lost ones included.
    replies: int = 0
    dropped: int = 0
    torn: int = 0
    delayed: int = 0
    cut: int = 0
    dropped_by_command: dict[str, int] = field(default_factory=dict)


class FaultProxy:
    """A loopback port that forwards to a server; its faults can be changed while it runs, from any thread."""

    def __init__(
        self,
        upstream: tuple[str, int],
        *,
        seed: int = 0,
        faults: LineFaults | None = None,
        wire: type[Wire] = RespWire,
    ) -> None:
        self._wire = wire
        self.faults = faults or LineFaults()
        self.struck = Struck()
        self.port = server_port()
        self._upstream = upstream
        self._random = Random(seed)
        self._lines: set[_Line] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"fault-proxy-{self.port}", daemon=True)
        self._flowing = asyncio.Event()
        self._up, self._down = (_Pace(self._rate, self._flowing) for _ in range(2))

    # -- its life -------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Begins to listen."""
        self._flowing.set()
        self._thread.start()
        try:
            self.accept()
        except OSError:  # somebody took the port since it was chosen
            self.port = server_port()
            self.accept()
        return self

    def end(self) -> None:
        """Closes everything; the thread has ended when this returns."""
        if self._thread.is_alive():
            self._do(self._shut())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.end()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return HOST, self.port

    def url_for(self, url: str) -> str:
        """The URL of the server behind, through this line."""
        host, port = self._upstream
        assert f"{host}:{port}" in url, f"{url} is not the URL of {host}:{port}"
        return url.replace(f"{host}:{port}", f"{HOST}:{self.port}")

    def pending(self) -> list[str]:
        """The commands that were forwarded and not answered yet."""
        return self._do(self._pending())

    # -- faults ---------------------------------------------------------------------------------------------

    def strike(self, faults: LineFaults | None = None) -> None:
        """From now on with these faults; with none, the line is good."""
        self.faults = faults or LineFaults()

    def cut(self) -> int:
        """Breaks all connections at once; returns how many there were."""
        return self._do(self._cut())

    def refuse(self) -> None:
        """New connections are refused, as on a port where nobody listens; those that are open stay."""
        self._do(self._close_listener())

    def accept(self) -> None:
        """New connections are accepted again."""
        self._do(self._open_listener())

    def stall(self) -> None:
        """Nothing goes through any more, in either direction, and no connection breaks: a dead line."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def flow(self) -> None:
        """What was held up goes through, and the line is alive again."""
        self._loop.call_soon_threadsafe(self._flowing.set)

    # -- in the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _do(self, step: Coroutine[Any, Any, Answer]) -> Answer:
        future: Future[Answer] = asyncio.run_coroutine_threadsafe(step, self._loop)
        return future.result(10)

    async def _open_listener(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, HOST, self.port, limit=_CHUNK_BYTES)

    async def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _pending(self) -> list[str]:
        return [command for line in self._lines for command in line.asked]

    async def _cut(self) -> int:
        lines = list(self._lines)
        for line in lines:
            line.abort()
        self.struck.cut += len(lines)
        return len(lines)

    async def _shut(self) -> None:
        await self._close_listener()
        await self._cut()
        await asyncio.gather(*(line.ended.wait() for line in self._lines))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.struck.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._upstream, limit=_CHUNK_BYTES)
        except OSError:
            writer.transport.abort()
            return
        ends = _End(reader, writer), _End(far_reader, far_writer)
        line = _Line(self._decide, self._up, self._down, self.struck, self._wire(), *ends)
        self._lines.add(line)
        try:
            await line.carry()
        finally:
            self._lines.discard(line)
            line.ended.set()

    def _rate(self) -> int:
        return self.faults.bytes_per_second

    def _decide(self, command: str) -> _Fate:
        """What happens to the next reply; the one place where faults are drawn and counted."""
        faults, struck = self.faults, self.struck
        if not faults.counts(command, self._wire.handshake):
            return _Fate()
        struck.replies += 1
        delay_ms = self._random.uniform(0, faults.longest_delay_ms) if faults.longest_delay_ms else 0.0
        struck.delayed += delay_ms > 0
        dropped = _is_turn(struck.replies, faults.drop_every) or self._random.random() < faults.drop_share
        if not dropped:
            return _Fate(delay_ms)
        struck.dropped += 1
        struck.dropped_by_command[command] = struck.dropped_by_command.get(command, 0) + 1
        torn = self._random.random() < faults.torn_share
        struck.torn += torn
        return _Fate(delay_ms, dropped=True, torn=torn)


def _is_turn(number: int, every: int) -> bool:
    return every > 0 and number % every == 0


@dataclass(frozen=True)
class _Fate:
    """What happens to one reply."""

    delay_ms: float = 0.0
    dropped: bool = False
    torn: bool = False


@dataclass(frozen=True)
class _End:
    """One side of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class _Pace:
    """How fast data flows in one direction, whichever connection it is for."""

    def __init__(self, rate: Callable[[], int], flowing: asyncio.Event) -> None:
        self._rate = rate
        self.flowing = flowing
        self._free_at = 0.0

    async def send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Writes the data, piece by piece while the line is narrow."""
        if not self._rate():
            await self.flowing.wait()
            writer.write(data)
        else:
            for begin in range(0, len(data), _PIECE_BYTES):
                await self._send_piece(writer, data[begin : begin + _PIECE_BYTES])
        await writer.drain()

    async def _send_piece(self, writer: asyncio.StreamWriter, piece: bytes) -> None:
        now = asyncio.get_running_loop().time()
        if rate := self._rate():
            self._free_at = max(now, self._free_at) + len(piece) / rate
            await asyncio.sleep(self._free_at - now)
        await self.flowing.wait()
        writer.write(piece)
        await writer.drain()


class _LineBroke(Exception):
    """This line is to be closed on both sides."""


class _Line:
    """One connection through the proxy."""

    def __init__(
        self, decide: Callable[[str], _Fate], up: _Pace, down: _Pace, struck: Struck, wire: Wire, near: _End, far: _End
    ) -> None:
        self._decide = decide
        self._up = up
        self._down = down
        self._struck = struck
        self._wire = wire
        self._near = near
        self._far = far
        #: The commands that wait for their replies.
        self.asked: deque[str] = deque()
        self._broken = asyncio.Event()
        self.ended = asyncio.Event()

    async def carry(self) -> None:
        """Forwards in both directions until one side ends."""
        ways = [self._forward_requests(), self._forward_replies(), self._broken.wait()]
        steps = [asyncio.ensure_future(way) for way in ways]
        try:
            await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for step in steps:
                step.cancel()
            await asyncio.gather(*steps, return_exceptions=True)
            self.abort()

    def abort(self) -> None:
        """Breaks the connection on both sides, without a farewell."""
        self._broken.set()
        self._near.writer.transport.abort()
        self._far.writer.transport.abort()

    async def _forward_requests(self) -> None:
        while data := await self._near.reader.read(_CHUNK_BYTES):
            await self._up.flowing.wait()
            if not self._wire.is_stream:
                commands = self._wire.requests(data)
                self._struck.requests += len(commands)
                self.asked.extend(commands)
            await self._up.send(self._far.writer, data)

    async def _forward_replies(self) -> None:
        with suppress(_LineBroke):
            while data := await self._far.reader.read(_CHUNK_BYTES):
                await self._down.flowing.wait()
                if self._wire.is_stream:
                    await self._down.send(self._near.writer, data)
                else:
                    await self._deliver(self._wire.replies(data))

    async def _deliver(self, replies: list[Reply]) -> None:
        for reply in replies:
            if not reply.is_answer:
                await self._down.send(self._near.writer, reply.data)
                continue
            fate = self._decide(self.asked.popleft())
            if fate.delay_ms:
                await asyncio.sleep(fate.delay_ms / 1_000)
            if fate.dropped:
                await self._break_off(reply.data if fate.torn else b"")
            await self._down.send(self._near.writer, reply.data)

    async def _break_off(self, reply: bytes) -> None:
        self._near.writer.write(reply[: len(reply) // 2])
        # What is written is sent; `abort` would throw it away together with the replies before it.
        await self._near.writer.drain()
        self._near.writer.close()
        await self._near.writer.wait_closed()
        raise _LineBroke
