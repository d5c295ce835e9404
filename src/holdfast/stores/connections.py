"""Connections of event loops and of threads, kept between calls, and calls that retry until their deadline."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from holdfast.errors import StoreUnavailable
from holdfast.runtime.forks import process

try:
    import fcntl
    import termios
except ImportError:  # Windows does not say what is left to send
    _HAS_IOCTL: Final = False
else:
    _HAS_IOCTL: Final = True  # type: ignore[misc]  # one of the two

#: No try waits longer for the next byte.
TRY_SECONDS: Final = 5.0
_SHORTEST_TRY_SECONDS: Final = 0.2
#: No try lasts longer, however steadily its bytes come.
LONGEST_TRY_SECONDS: Final = 120.0
#: How often within the time that it may be silent a slow try is looked at.
_LOOKS: Final = 4
_FIRST_PAUSE_SECONDS: Final = 0.025
_LONGEST_PAUSE_SECONDS: Final = 0.5


class Deadline:
    """The time that one call has, and what of it is left."""

    def __init__(self, limit_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self._deadline = self._begun + limit_ms / 1000
        self._pauses = 0
        self._told: BaseException | None = None

    def left(self) -> float:
        """Seconds until the deadline."""
        return self._deadline - self._loop.time()

    def spent_ms(self) -> int:
        """How long the call has lasted so far, to the tenth of a second."""
        return max(1, round((self._loop.time() - self._begun) * 10)) * 100

    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.left() <= 0

    def for_a_try(self) -> float:
        """Seconds for the next try: half of what is left, so that a server that froze leaves time for another one."""
        return min(TRY_SECONDS, max(self.left() / 2, _SHORTEST_TRY_SECONDS))

    def most_telling(self, error: BaseException) -> BaseException:
        """The error of the last try, or an earlier one if the last says only that time ran out."""
        return error if self._told is None or not isinstance(error, TimeoutError) else self._told

    async def pause(self, error: BaseException | None = None) -> None:
        """Sleeps after a try that failed: longer each time, and never as long as others that failed just then."""
        if error is not None and not isinstance(error, TimeoutError):
            self._told = error
        longest = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**self._pauses)
        self._pauses += 1
        await asyncio.sleep(min(random.uniform(0, longest), max(self.left(), 0)))  # noqa: S311


class Movement:
    """Whether bytes move on a connection: when the last one came, and how many are still to leave."""

    def __init__(self, transport: asyncio.WriteTransport | None = None) -> None:
        self._transport = transport
        #: The event loop's time when the last bytes came.
        self.at = 0.0

    def unsent_bytes(self) -> int:
        """What was written and has not left this machine, as far as it can be told."""
        if self._transport is None or self._transport.is_closing():
            return 0
        waiting: int = self._transport.get_write_buffer_size()
        if not _HAS_IOCTL:
            return waiting
        connection = self._transport.get_extra_info("socket")
        try:
            (in_kernel,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4))
        except (OSError, AttributeError):  # a kind of socket that does not say
            in_kernel = 0
        return waiting + int(in_kernel)


def watched(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Movement:
    """The movement on a stream, noted from now on whenever bytes come."""
    movement = Movement(writer.transport)
    feed_data, now = reader.feed_data, asyncio.get_running_loop().time

    def note_and_feed(data: Any) -> None:
        movement.at = now()
        feed_data(data)

    reader.feed_data = note_and_feed  # type: ignore[method-assign]  # where every byte passes, under TLS too
    return movement


class Try:
    """One try at a call: ended with `TimeoutError` after `silent_seconds` without a byte, not while bytes move.

    An answer that is larger than the line carries in that time would otherwise be asked for again and again.
    """

    def __init__(self, silent_seconds: float) -> None:
        self._seconds = silent_seconds
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._movement: Movement | None = None
        self._unsent_bytes = 0

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._begun = self._moved_at = self._loop.time()
        self._timer = self._loop.call_later(self._seconds / _LOOKS, self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def follow(self, movement: Movement) -> None:
        """Counts from the bytes on this connection."""
        self._movement = movement

    def _look(self) -> None:
        now = self._loop.time()
        if self._movement is not None:
            unsent_bytes = self._movement.unsent_bytes()
            self._moved_at = max(self._moved_at, self._movement.at)
            if unsent_bytes != self._unsent_bytes:
                self._unsent_bytes, self._moved_at = unsent_bytes, now
        left = min(self._moved_at + self._seconds, self._begun + LONGEST_TRY_SECONDS) - now
        if left <= 0:
            self._limit.reschedule(now)
        else:
            self._timer = self._loop.call_later(min(left, self._seconds / _LOOKS), self._look)


# -- connections between two calls -----------------------------------------------------------------------------


C = TypeVar("C")


class IdleConnections(Generic[C]):
    """Open connections between two calls, of one event loop or of the threads of one process.

    There is no lock: every step is one operation on a list, so that a signal handler may come between any two.
    """

    def __init__(self, drop: Callable[[C], object], limit: int | None = None) -> None:
        self.closed = False
        self._drop = drop
        self._limit = limit
        self._idle: list[C] = []

    def take(self, is_fit: Callable[[C], bool] = lambda _: True) -> C | None:
        """The fit connection used last, since the server may close those that grow old; drops the unfit before it."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:  # not asked before: another thread may take the last one in between
                return None
            if is_fit(connection):
                return connection
            self._drop(connection)

    def give_back(self, connection: C) -> None:
        """Keeps a connection for the next call, or drops it if there are enough."""
        if self.closed or (self._limit is not None and len(self._idle) >= self._limit):
            self._drop(connection)
        else:
            self._idle.append(connection)

    def clear(self) -> None:
        """Drops all idle connections."""
        self.take(lambda _: False)

    def close(self) -> None:
        """Drops all idle connections, and from now on those that are given back."""
        self.closed = True
        self.clear()


class IdleByProcess(Generic[C]):
    """The idle connections of each process, up to `limit` for its threads; a forked child begins with none."""

    def __init__(self, drop: Callable[[C], object], limit: int) -> None:
        self.closed = False
        self._drop = drop
        self._limit = limit
        #: What a parent left here stays untouched in its child: closing it would disturb the parent.
        self._by_process: dict[tuple[int, int], IdleConnections[C]] = {}

    def own(self) -> IdleConnections[C]:
        """Those of this process. Take and give back with the same object: a signal handler may fork in between."""
        this = process()
        known = self._by_process.get(this)
        return known or self._by_process.setdefault(this, IdleConnections(self._drop, self._limit))

    def close(self) -> None:
        """Ends the connections of this process."""
        self.closed = True
        self.own().close()


# -- sessions ------------------------------------------------------------------------------------------------


CLOSED: Final = "the store is closed"
#: How long closing waits for calls under way.
CLOSE_SECONDS: Final = 5.0


class LoopSession:
    """What a link holds for one event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        #: How many calls have begun and not ended, those between two tries included.
        self.under_way = 0
        self._until_loop_ends: AsyncGenerator[None, None] | None = None

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call from its first try to its last: closing waits for it, even if it has no connection at that moment."""
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    async def calls_to_end(self) -> None:
        """Returns when no call is under way, or after `CLOSE_SECONDS`."""
        deadline = self.loop.time() + CLOSE_SECONDS
        while self.under_way and self.loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def end_with_loop(self) -> None:
        """Has the connections closed when the event loop ends, even if the caller does not close the link.

        `asyncio.run` and its like end all open async generators first: the one place where a library is told.
        """
        if self._until_loop_ends is None:
            self._until_loop_ends = self._hold()
            await anext(self._until_loop_ends)

    async def close(self) -> None:
        """Lets the calls under way finish, then ends all connections; calls that wait for a wake-up stop waiting."""
        await self._end()
        if self._until_loop_ends is not None:
            await self._until_loop_ends.aclose()

    async def _hold(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self._end()

    async def _end(self) -> None:
        raise NotImplementedError


Session = TypeVar("Session", bound=LoopSession)


class LoopSessions(Generic[Session]):
    """The sessions of one process, by event loop; never those of a parent process."""

    def __init__(self, make: Callable[[], Session]) -> None:
        self._make = make
        self._by_loop: dict[asyncio.AbstractEventLoop, Session] = {}
        self._process = process()
        self._left_behind: list[Session] = []
        self.closed = False

    async def get(self) -> Session:
        """The session of the running event loop."""
        session = self.known()
        if session is None:
            if self.closed:
                raise StoreUnavailable(CLOSED)
            self._by_loop = {loop: known for loop, known in self._by_loop.items() if not loop.is_closed()}
            session = self._by_loop[asyncio.get_running_loop()] = self._make()
            await session.end_with_loop()
        return session

    def known(self) -> Session | None:
        """The session of the running event loop, if it has one."""
        if self._process != process():
            # Kept, not closed: closing here would meddle with sockets that the parent still uses.
            self._left_behind.extend(self._by_loop.values())
            self._by_loop = {}
            self._process = process()
        return self._by_loop.get(asyncio.get_running_loop())

    async def close(self) -> None:
        """Ends all of them, those of other event loops too."""
        self.closed = True
        for loop, session in list(self._by_loop.items()):
            if loop is asyncio.get_running_loop():
                await session.close()
            elif loop.is_running():
                # Not waited for: that loop may itself be waiting, in a sync call, for this very close.
                asyncio.run_coroutine_threadsafe(session.close(), loop)
            # A loop that rests closes its session when it ends.
        self._by_loop.clear()
