"""Wake-ups: each wakes one waiter, in whatever process it waits; a lost one costs latency, never work."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import psycopg

from holdfast.stores.postgres.connection import Connection, PrimaryFinder
from holdfast.stores.postgres.errors import TROUBLES
from holdfast.stores.postgres.urls import Login, PostgresSettings

#: However many tasks are enqueued, one event loop sends no more than this: the first at once, the others together.
NOTIFY_EVERY_SECONDS: Final = 0.005
_NOTIFY_SECONDS: Final = 2.0
_LAST_NOTIFY_SECONDS: Final = 1.0


class Wakeups:
    """The wake-ups of one event loop: one connection to send, one to listen, each made when first needed."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._notifier = Notifier(settings)
        self._listener = Listener(settings, self._notifier.notify)

    def notify(self, names: Iterable[str]) -> None:
        """Wakes one waiter for each of these, soon."""
        self._notifier.notify(names)

    async def wait(self, names: Sequence[str], timeout_ms: int) -> bool:
        """Whether one of these came within this time, or within that of a safety poll without a listener."""
        return await self._listener.wait(names, timeout_ms)

    def doubt(self) -> None:
        """After trouble with the server: makes sure that wake-ups still arrive."""
        self._listener.doubt()

    async def close(self) -> None:
        """Stops listening, and sends what is still to be sent."""
        await self._listener.close()
        await self._notifier.close()


class Notifier:
    """Sends wake-ups after the commit that they tell of, never within it: notifying commits wait for each other."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._finder = PrimaryFinder(settings.login, settings)
        self._statement = f"SELECT {settings.quoted_schema}.notify(%s::text[])"
        self._unsent: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._closing = asyncio.Event()

    def notify(self, names: Iterable[str]) -> None:
        """Has these sent."""
        self._unsent.update(names)
        if self._unsent and (self._sending is None or self._sending.done()) and not self._closing.is_set():
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def close(self) -> None:
        """Sends what is left, if that goes quickly."""
        self._closing.set()
        if self._sending is not None and not self._sending.done():
            await asyncio.wait([self._sending], timeout=_LAST_NOTIFY_SECONDS)
            self._sending.cancel()
        if self._unsent:
            await self._send(_LAST_NOTIFY_SECONDS)
        if self._connection is not None:
            self._connection.drop()
            self._connection = None

    async def _send_all(self) -> None:
        while self._unsent:
            await self._send(_NOTIFY_SECONDS)
            await self._rest()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(NOTIFY_EVERY_SECONDS):
                await self._closing.wait()
        except TimeoutError:
            return

    async def _send(self, seconds: float) -> None:
        names, self._unsent = self._unsent, set()
        try:
            async with asyncio.timeout(seconds):
                if self._connection is None or not self._connection.is_fit():
                    self._connection = await self._finder.connect()
                await self._connection.ask(self._statement, (sorted(names),))
        except TROUBLES:
            # Not sent again: by the time the server is back, the safety polls have found the tasks.
            self._hang_up()
        except BaseException:
            self._unsent |= names
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.drop()
            self._connection = None


#: Without a listener, a wait is no longer than this, give or take a quarter.
POLL_SECONDS: Final = 1.0
#: How often the server is told again that we wait, which also shows that it is still there.
_REPEAT_SECONDS: Final = 20.0
_ANSWER_SECONDS: Final = 2.5
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 5.0


class Waiters:
    """The waiters of this event loop, by wake-up, first come first served."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[asyncio.Future[str], None]] = {}

    def add(self, names: Iterable[str]) -> asyncio.Future[str]:
        """A future that becomes the name of the wake-up that came."""
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
        """Wakes the one that has waited longest for this; False if there is none."""
        for waiter in self._waiting.get(name, ()):
            if not waiter.done():
                waiter.set_result(name)
                return True
        return False

    def names(self) -> set[str]:
        """The wake-ups that a waiter waits for."""
        return {name for name, waiters in self._waiting.items() if any(not waiter.done() for waiter in waiters)}


class Listener:
    """Hears the wake-ups that this event loop waits for, and wakes one waiter for each."""

    def __init__(self, settings: PostgresSettings, pass_on: Callable[[Iterable[str]], None]) -> None:
        self._finder = None if settings.listen == "poll" else PrimaryFinder(_login(settings), settings)
        self._schema = settings.quoted_schema
        self._pass_on = pass_on
        self._channel = f"holdfast_{secrets.token_hex(8)}"
        self._waiters = Waiters()
        #: Wake-ups for which the server knows that we wait.
        self._attended: set[str] = set()
        self._changed = asyncio.Event()
        self._connection: Connection | None = None
        self._listening: asyncio.Task[None] | None = None

    async def wait(self, names: Sequence[str], timeout_ms: int) -> bool:
        """Whether one of these came in time."""
        seconds = timeout_ms / 1000
        if self._connection is None:
            seconds = min(seconds, POLL_SECONDS * random.uniform(0.75, 1.25))  # noqa: S311
        waiter = self._waiters.add(names)
        try:
            self._attend(names)
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            return _is_woken(waiter)  # it may have been in this very moment
        except asyncio.CancelledError:
            if _is_woken(waiter):
                self._pass_on([waiter.result()])
            raise
        finally:
            self._waiters.remove(names, waiter)
        return True

    def doubt(self) -> None:
        """Tells the server again that we wait; if it does not answer, another is looked for."""
        self._attended.clear()
        self._changed.set()

    async def close(self) -> None:
        """Tells the server that this process waits no more."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening], timeout=_ANSWER_SECONDS)
        self._finder = None

    def _attend(self, names: Iterable[str]) -> None:
        if self._finder is None:
            return
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._listen())
        if not self._attended.issuperset(names):
            self._changed.set()

    async def _listen(self) -> None:
        pauses = 0
        while self._finder is not None:
            try:
                await self._connect(self._finder)
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

    async def _connect(self, finder: PrimaryFinder) -> None:
        async with asyncio.timeout(_ANSWER_SECONDS):
            connection = await finder.connect()
            if connection.pooled or not watches_sockets(asyncio.get_running_loop()):
                # A pooler would give the listening session to another client: from now on the safety poll has to do.
                self._finder = None
                connection.drop()
                return
            self._connection = connection
            connection.add_notify_handler(lambda notify: self._heard(notify.payload))
            await connection.execute(f"LISTEN {self._channel}")
            await connection.ask(f"SELECT {self._schema}.sign_on()")

    async def _hear(self) -> None:
        """Hears until the connection is lost; between its statements, wake-ups are read as they come."""
        self._changed.set()
        while (connection := self._connection) is not None:
            await self._news(connection)
            if names := sorted(self._waiters.names() - self._attended):
                self._attended.update(names)
                async with asyncio.timeout(_ANSWER_SECONDS):
                    rows = await connection.ask(f"SELECT {self._schema}.attend(%s::text[], %s)", (names, self._channel))
                for (name,) in rows:
                    self._heard(name)

    async def _news(self, connection: Connection) -> None:
        """Returns when a waiter waits for another wake-up, or when it is time to say everything again."""
        loop = asyncio.get_running_loop()
        socket = connection.pgconn.socket
        loop.add_reader(socket, self._read, connection)
        try:
            async with asyncio.timeout(_REPEAT_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            self._attended.clear()
        finally:
            loop.remove_reader(socket)
        self._changed.clear()

    def _read(self, connection: Connection) -> None:
        try:
            connection.pgconn.consume_input()
        except psycopg.Error:
            self._hang_up()
            return
        while notify := connection.pgconn.notifies():
            self._heard(notify.extra.decode())

    def _heard(self, name: str) -> None:
        """One wake-up: for the first waiter here, or for another process."""
        self._attended.discard(name)
        if not self._waiters.wake(name):
            self._pass_on([name])
        self._changed.set()

    async def _sign_off(self) -> None:
        if self._connection is not None and self._connection.is_fit():
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await self._connection.ask(f"SELECT {self._schema}.sign_off(%s)", (self._channel,))
            except TROUBLES:
                pass
        self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.drop()
            self._connection = None
        self._attended.clear()
        self._changed.set()


def _is_woken(waiter: asyncio.Future[str]) -> bool:
    return waiter.done() and not waiter.cancelled()


def _login(settings: PostgresSettings) -> Login:
    return settings.listen if isinstance(settings.listen, Login) else settings.login


def watches_sockets(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this event loop tells when a socket can be read: the default one of Windows does not."""
    return type(loop).add_reader is not asyncio.AbstractEventLoop.add_reader
