"""The one connection of a process that hears bells, and those who wait for them."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import psycopg

from holdfast.stores.postgres.failures import TROUBLES
from holdfast.stores.postgres.lines import Line
from holdfast.stores.postgres.urls import Login, PostgresSettings
from holdfast.stores.postgres.way import Way

#: Without a listener, a wait is no longer than this, give or take a quarter.
POLL_SECONDS: Final = 1.0
#: So often the server is told again who waits here, which also shows that it is still there.
_REPEAT_SECONDS: Final = 20.0
_ANSWER_SECONDS: Final = 2.5
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 5.0


class Waiters:
    """Who waits in this event loop, for which bells, first come first served."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[asyncio.Future[str], None]] = {}

    def add(self, names: Iterable[str]) -> asyncio.Future[str]:
        """A future that becomes the name of the bell that was rung."""
        waiter: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        for name in names:
            self._waiting.setdefault(name, {})[waiter] = None
        return waiter

    def remove(self, names: Iterable[str], waiter: asyncio.Future[str]) -> None:
        """Waits no more."""
        for name in names:
            if waiters := self._waiting.get(name):
                waiters.pop(waiter, None)
                if not waiters:
                    del self._waiting[name]

    def wake(self, name: str) -> bool:
        """Wakes the one who has waited longest for this bell; False if there is nobody."""
        for waiter in self._waiting.get(name, ()):
            if not waiter.done():
                waiter.set_result(name)
                return True
        return False

    def names(self) -> set[str]:
        """The bells that somebody waits for."""
        return {name for name, waiters in self._waiting.items() if any(not waiter.done() for waiter in waiters)}


class Listener:
    """Hears the bells that somebody in this event loop waits for, and wakes one of them for each ring."""

    def __init__(self, settings: PostgresSettings, pass_on: Callable[[Iterable[str]], None]) -> None:
        self._way = None if settings.listen == "poll" else Way(_login(settings), settings)
        self._schema = settings.schema
        self._pass_on = pass_on
        self._channel = f"holdfast_{secrets.token_hex(8)}"
        self._waiters = Waiters()
        #: Bells for which the server knows that we wait.
        self._attended: set[str] = set()
        self._changed = asyncio.Event()
        self._line: Line | None = None
        self._listening: asyncio.Task[None] | None = None

    async def wait(self, names: Sequence[str], timeout_ms: int) -> bool:
        """Whether one of these was rung in time."""
        seconds = timeout_ms / 1000
        if self._line is None:
            seconds = min(seconds, POLL_SECONDS * random.uniform(0.75, 1.25))  # noqa: S311
        waiter = self._waiters.add(names)
        try:
            self._attend(names)
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            return _is_rung(waiter)  # it may have been in this very moment
        except asyncio.CancelledError:
            if _is_rung(waiter):
                self._pass_on([waiter.result()])
            raise
        finally:
            self._waiters.remove(names, waiter)
        return True

    def doubt(self) -> None:
        """Tells the server again who waits here; if it does not answer, another is looked for."""
        self._attended.clear()
        self._changed.set()

    async def close(self) -> None:
        """Tells the server that nobody waits here any more."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening], timeout=_ANSWER_SECONDS)
        self._way = None

    def _attend(self, names: Iterable[str]) -> None:
        if self._way is None:
            return
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._listen())
        if not self._attended.issuperset(names):
            self._changed.set()

    async def _listen(self) -> None:
        pauses = 0
        while self._way is not None:
            try:
                await self._connect(self._way)
                pauses = 0
                await self._hear()
            except TROUBLES:
                self._hang_up()
            except BaseException:
                await self._sign_off()
                raise
            longest = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**pauses)
            pauses += 1
            await asyncio.sleep(random.uniform(longest / 2, longest))  # noqa: S311

    async def _connect(self, way: Way) -> None:
        async with asyncio.timeout(_ANSWER_SECONDS):
            line = await way.connect()
            if line.pooled:
                # A pooler would give the listening session to somebody else: from now on the safety poll has to do.
                self._way = None
                line.drop()
                return
            self._line = line
            line.add_notify_handler(lambda notify: self._heard(notify.payload))
            await line.execute(f"LISTEN {self._channel}")
            await line.ask(f"SELECT {self._schema}.sign_on()")

    async def _hear(self) -> None:
        """Hears until the connection is lost; between its statements, rings are read as they come."""
        self._changed.set()
        while (line := self._line) is not None:
            await self._news(line)
            if names := sorted(self._waiters.names() - self._attended):
                self._attended.update(names)
                async with asyncio.timeout(_ANSWER_SECONDS):
                    rows = await line.ask(f"SELECT {self._schema}.attend(%s::text[], %s)", (names, self._channel))
                for (name,) in rows:
                    self._heard(name)

    async def _news(self, line: Line) -> None:
        """Returns when somebody waits for another bell, or when it is time to say everything again."""
        loop = asyncio.get_running_loop()
        socket = line.pgconn.socket
        loop.add_reader(socket, self._read, line)
        try:
            async with asyncio.timeout(_REPEAT_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            self._attended.clear()
        finally:
            loop.remove_reader(socket)
        self._changed.clear()

    def _read(self, line: Line) -> None:
        try:
            line.pgconn.consume_input()
        except psycopg.Error:
            self._hang_up()
            return
        while notify := line.pgconn.notifies():
            self._heard(notify.extra.decode())

    def _heard(self, name: str) -> None:
        """One ring: for the first who waits here, or for another process."""
        self._attended.discard(name)
        if not self._waiters.wake(name):
            self._pass_on([name])
        self._changed.set()

    async def _sign_off(self) -> None:
        if self._line is not None and self._line.is_fit():
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await self._line.ask(f"SELECT {self._schema}.sign_off(%s)", (self._channel,))
            except TROUBLES:
                pass
        self._hang_up()

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.drop()
            self._line = None
        self._attended.clear()
        self._changed.set()


def _is_rung(waiter: asyncio.Future[str]) -> bool:
    return waiter.done() and not waiter.cancelled()


def _login(settings: PostgresSettings) -> Login:
    return settings.listen if isinstance(settings.listen, Login) else settings.login
