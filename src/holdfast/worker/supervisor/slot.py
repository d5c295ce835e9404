"""A slot of the pool: an exited child is followed by another, a recycled one leaves when its successor serves."""

from __future__ import annotations

import asyncio
import logging
from typing import Self

from holdfast.clock import Clock
from holdfast.worker import protocol
from holdfast.worker.backoff import Backoff
from holdfast.worker.supervisor.process import ChildProcess

_log = logging.getLogger("holdfast.worker")

#: A child that lived this long was healthy: its restart is not delayed.
HEALTHY_MS = 60_000
#: Old children of a slot that may still be busy with their last tasks; with more, a recycling has to wait.
MAX_LEAVING = 3


class Incarnation:
    """One child, from its start until everything that it held is settled."""

    def __init__(self, number: int, incarnation: int, started_at_ms: int, *, alone: bool, slow_start: bool) -> None:
        self.number = number
        self.name = f"{number}.{incarnation}"
        self.alone = alone
        self.slow_start = slow_start
        self.started_at_ms = started_at_ms
        self.child: ChildProcess | None = None
        #: The app could not be imported: without a change of its source the next one will fail too.
        self.unusable = False
        self.how_it_ended = ""
        #: Recycles it when it has reached its age.
        self.ageing: asyncio.TimerHandle | None = None

    @property
    def serving(self) -> bool:
        """Whether it reserves."""
        return self.child is not None and self.child.serving

    @property
    def ended_cleanly(self) -> bool:
        """Whether it drained or was made to end: nothing is wrong with it."""
        return self.child is not None and (self.child.drained or self.child.dismissed)


class ChildSlot:
    """A slot for one child; `async for` gives the incarnations to start, until it is closed and all have ended.

    Every event sets `_news`, and `_look` brings the slot from its current state to the wanted one.
    """

    def __init__(
        self,
        number: int,
        clock: Clock,
        *,
        alone: bool = False,
        wait_for_change: bool = False,
        backoff: Backoff | None = None,
    ) -> None:
        self.number = number
        self._clock = clock
        self.alone = alone
        #: An app that cannot be imported is tried again when `replace` is called, not after a while.
        self._wait_for_change = wait_for_change
        self._backoff = backoff or Backoff(base_ms=500, cap_ms=30_000)
        self._news = asyncio.Event()
        self._incarnations: list[Incarnation] = []
        self._ended: list[Incarnation] = []
        self._serving: Incarnation | None = None
        self._coming: Incarnation | None = None
        self._count = 0
        #: Why the child is to be replaced, and why the one that is coming was started.
        self._wanted = ""
        self._coming_because = ""
        self._resting: asyncio.TimerHandle | None = None
        self._waiting_for_change = False
        self._slow_start = False
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Incarnation:
        while True:
            self._news.clear()
            started = self._look()
            if started is not None:
                return started
            if self._closed and not self._incarnations:
                raise StopAsyncIteration
            await self._news.wait()

    @property
    def steady(self) -> bool:
        """Whether one child serves, and none comes or goes."""
        return self._serving is not None and len(self._incarnations) == 1

    @property
    def serving(self) -> Incarnation | None:
        """Its child, once that works."""
        return self._serving

    def notify(self) -> None:
        """The state of a child has changed."""
        self._news.set()

    def ended(self, incarnation: Incarnation) -> None:
        """The child is gone, and everything that it held is settled."""
        self._ended.append(incarnation)
        self.notify()

    def replace(self, reason: str) -> None:
        """Starts a successor, now."""
        self._wanted = reason
        self._waiting_for_change = False
        self._wake_up()

    def recycle(self, incarnation: Incarnation, reason: str) -> None:
        """Replaces the child; of no interest if it is on its way out already."""
        if incarnation is self._serving and self._coming is None:
            _log.info("child %s %s; its successor is starting", incarnation.name, reason)
            self.replace(reason)

    def close(self) -> None:
        """Starts no more children, and kills those that do not serve yet."""
        self._closed = True
        if self._coming is not None and self._coming.child is not None and not self._coming.serving:
            self._coming.child.dismissed = True
            self._coming.child.kill()
        self._wake_up()

    # -- from the current state to the wanted one ------------------------------------------------------------

    def _look(self) -> Incarnation | None:
        ended, self._ended = self._ended, []
        for incarnation in ended:
            self._incarnations.remove(incarnation)
            self._follow(incarnation)
        if self._coming is not None and self._coming.serving:
            self._change_over(self._coming)
        return self._start() if not self._closed and self._should_start() else None

    def _should_start(self) -> bool:
        if self._coming is not None or self._resting is not None or self._waiting_for_change:
            return False
        return self._serving is None or (bool(self._wanted) and len(self._incarnations) <= MAX_LEAVING)

    def _start(self) -> Incarnation:
        self._count += 1
        now_ms = self._clock.monotonic_ms()
        started = Incarnation(self.number, self._count, now_ms, alone=self.alone, slow_start=self._slow_start)
        self._slow_start = False
        self._coming, self._coming_because, self._wanted = started, self._wanted, ""
        self._incarnations.append(started)
        return started

    def _change_over(self, successor: Incarnation) -> None:
        before, self._serving, self._coming = self._serving, successor, None
        if before is not None and before.child is not None:
            before.child.send(protocol.Quiet())

    def _follow(self, ended: Incarnation) -> None:
        if self._closed:
            return
        if ended is self._coming:
            self._coming = None
            self._follow_unserving(ended)
        elif ended is self._serving:
            self._serving = None
            self._follow_serving(ended)
        elif not ended.ended_cleanly:
            _log.error("child %s %s", ended.name, ended.how_it_ended)

    def _follow_unserving(self, ended: Incarnation) -> None:
        """After one that never served: it is tried again after a while, or when the source has changed."""
        self._waiting_for_change = ended.unusable and self._wait_for_change
        if self._waiting_for_change:
            return
        goes_on = f"; child {self._serving.name} goes on" if self._serving else ""
        self._wanted = self._wanted or self._coming_because
        self._rest(ended, goes_on)

    def _follow_serving(self, ended: Incarnation) -> None:
        """After one that served, a successor starts: soon, unless one after the other dies."""
        if ended.ended_cleanly:
            _log.info("child %s %s; starting another one", ended.name, ended.how_it_ended)
        elif self._coming is not None:
            _log.error("child %s %s; its successor is starting", ended.name, ended.how_it_ended)
        else:
            self._slow_start = True
            self._rest(ended)

    def _rest(self, ended: Incarnation, more: str = "") -> None:
        healthy = self._clock.monotonic_ms() - ended.started_at_ms >= HEALTHY_MS
        if healthy:
            self._backoff.reset()
        delay_s = 0.0 if healthy or self._count == 1 else self._backoff.next_s()
        _log.error("child %s %s; starting another one in %.1f s%s", ended.name, ended.how_it_ended, delay_s, more)
        if delay_s:
            self._resting = asyncio.get_running_loop().call_later(delay_s, self._wake_up)

    def _wake_up(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        self.notify()
