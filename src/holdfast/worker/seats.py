"""Keeps a place filled: a child that dies is followed by another, one that is worn leaves when its successor serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from holdfast.clock import Clock
from holdfast.worker import messages
from holdfast.worker.backoff import Backoff
from holdfast.worker.child_process import ChildProcess

_log = logging.getLogger("holdfast.worker")

#: A child that lived this long was healthy: its restart is not delayed.
HEALTHY_MS = 60_000
#: So many old children of a seat may still be busy with their last tasks; with more, a worn one has to wait.
MAX_LEAVING = 3


class Life:
    """One child, from its start until everything that it held is settled."""

    def __init__(self, number: int, incarnation: int, started_at_ms: int, *, alone: bool, slow_start: bool) -> None:
        self.number = number
        self.name = f"{number}.{incarnation}"
        self.alone = alone
        self.slow_start = slow_start
        self.started_at_ms = started_at_ms
        self.child: ChildProcess | None = None
        #: The app could not be imported: without a change of its source the next one will not fare better.
        self.unusable = False
        self.how_it_ended = ""
        self.ageing: asyncio.TimerHandle | None = None

    @property
    def serving(self) -> bool:
        """Whether it reserves."""
        return self.child is not None and self.child.serving

    @property
    def blameless(self) -> bool:
        """Whether it left in good order or was made to end: nothing is wrong with it."""
        return self.child is not None and (self.child.drained or self.child.dismissed)


class Seat:
    """A place for one child.

    Whatever happens sets `news`, and `_look` brings the seat from where it is to where it should be.
    """

    def __init__(
        self,
        number: int,
        live: Callable[[Seat, Life], Awaitable[None]],
        clock: Clock,
        *,
        alone: bool = False,
        wait_for_change: bool = False,
        backoff: Backoff | None = None,
    ) -> None:
        self.number = number
        self._live = live
        self._clock = clock
        self.alone = alone
        #: An app that cannot be imported is tried again when `replace` is called, not after a while.
        self._wait_for_change = wait_for_change
        self._backoff = backoff or Backoff(base_ms=500, cap_ms=30_000)
        self._news = asyncio.Event()
        self._tasks: dict[Life, asyncio.Future[None]] = {}
        self._serving: Life | None = None
        self._coming: Life | None = None
        self._incarnation = 0
        #: Why the child is to be replaced, and why the one that is coming was started.
        self._wanted = ""
        self._coming_because = ""
        self._resting: asyncio.TimerHandle | None = None
        self._waiting_for_change = False
        self._slow_start = False
        self._closed = False

    async def keep(self) -> None:
        """Goes on until the seat is closed and all of its children are gone."""
        try:
            while not self._closed or self._tasks:
                self._news.clear()
                self._look()
                if not self._closed or self._tasks:
                    await self._news.wait()
        finally:
            await self._abandon()

    @property
    def settled(self) -> bool:
        """One child serves, and none comes or goes."""
        return self._serving is not None and len(self._tasks) == 1

    @property
    def serving(self) -> Life | None:
        """Its child, once that works."""
        return self._serving

    def tell(self) -> None:
        """Something has happened to a child: look."""
        self._news.set()

    def replace(self, reason: str) -> None:
        """Starts a successor, now."""
        self._wanted = reason
        self._waiting_for_change = False
        self._wake_up()

    def wear_out(self, life: Life, reason: str) -> None:
        """The child wants to be replaced; of no interest if it is on its way out already."""
        if life is self._serving and self._coming is None:
            _log.info("child %s %s; its successor is starting", life.name, reason)
            self.replace(reason)

    def close(self) -> None:
        """Starts no more children, and kills those that do not serve yet."""
        self._closed = True
        if self._coming is not None and self._coming.child is not None and not self._coming.serving:
            self._coming.child.dismissed = True
            self._coming.child.kill()
        self._wake_up()

    # -- from where it is to where it should be --------------------------------------------------------------

    def _look(self) -> None:
        for life in [life for life, task in self._tasks.items() if task.done()]:
            self._tasks.pop(life).result()
            self._part_from(life)
        if self._coming is not None and self._coming.serving:
            self._change_over(self._coming)
        if not self._closed and self._should_start():
            self._start()

    def _should_start(self) -> bool:
        if self._coming is not None or self._resting is not None or self._waiting_for_change:
            return False
        return self._serving is None or (bool(self._wanted) and len(self._tasks) <= MAX_LEAVING)

    def _start(self) -> None:
        self._incarnation += 1
        now_ms = self._clock.monotonic_ms()
        life = Life(self.number, self._incarnation, now_ms, alone=self.alone, slow_start=self._slow_start)
        self._slow_start = False
        self._coming, self._coming_because, self._wanted = life, self._wanted, ""
        self._tasks[life] = task = asyncio.ensure_future(self._live(self, life))
        task.add_done_callback(lambda _: self.tell())

    def _change_over(self, successor: Life) -> None:
        before, self._serving, self._coming = self._serving, successor, None
        if before is not None and before.child is not None:
            before.child.send(messages.Quiet())

    def _part_from(self, life: Life) -> None:
        if self._closed:
            return
        if life is self._coming:
            self._coming = None
            self._put_off(life)
        elif life is self._serving:
            self._serving = None
            self._follow(life)
        elif not life.blameless:
            _log.error("child %s %s", life.name, life.how_it_ended)

    def _put_off(self, life: Life) -> None:
        """One that never served: what can be done depends on who else there is."""
        self._waiting_for_change = life.unusable and self._wait_for_change
        if self._waiting_for_change:
            return
        goes_on = f"; child {self._serving.name} goes on" if self._serving else ""
        self._wanted = self._wanted or self._coming_because
        self._rest(life, goes_on)

    def _follow(self, life: Life) -> None:
        """One that served is gone, and a successor starts: soon, unless one after the other dies."""
        if life.blameless:
            _log.info("child %s %s; starting another one", life.name, life.how_it_ended)
        elif self._coming is not None:
            _log.error("child %s %s; its successor is starting", life.name, life.how_it_ended)
        else:
            self._slow_start = True
            self._rest(life)

    def _rest(self, life: Life, more: str = "") -> None:
        healthy = self._clock.monotonic_ms() - life.started_at_ms >= HEALTHY_MS
        if healthy:
            self._backoff.reset()
        delay_s = 0.0 if healthy or self._incarnation == 1 else self._backoff.next_s()
        _log.error("child %s %s; starting another one in %.1f s%s", life.name, life.how_it_ended, delay_s, more)
        if delay_s:
            self._resting = asyncio.get_running_loop().call_later(delay_s, self._wake_up)

    async def _abandon(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _wake_up(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        self.tell()
