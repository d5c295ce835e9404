"""The loop around the maintenance jobs: one leader per partition, errors kept apart, no job waits for another."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.errors import HoldfastError, StaleEpoch
from holdfast.maintenance.balance import Balance
from holdfast.maintenance.promoter import Promoter
from holdfast.maintenance.pruner import Pruner
from holdfast.maintenance.reaper import Reaper
from holdfast.maintenance.scheduler import Scheduler
from holdfast.stores.contract import MAINTENANCE, MAINTENANCE_WAKEUP, Retention, Store

#: An owner that dies is replaced after this long at most.
LEADER_TTL_MS = 5_000
_RENEWALS_PER_TTL = 3
#: An owner asks itself this often whether it looks after more than its share.
_RENEWALS_PER_BALANCE = 6
#: Long enough for another process to notice that a partition is free.
_PAUSE_AFTER_GIVING_AWAY_MS = 2 * LEADER_TTL_MS
_PAUSE_AFTER_ERROR_MS = 1_000
_LISTEN_MS = 5_000
#: Wake-ups are mostly for delayed tasks: the schedules, which are seldom new, are not checked for each of them.
_BETWEEN_LOOKS_MS = 50
_RETENTION = Retention()
log = logging.getLogger(__name__)


class Job(Protocol):
    """One maintenance job."""

    async def run_once(self, store: Store, epoch: int) -> int:
        """Does one portion; answers how many milliseconds until it wants to run again."""
        ...


class Maintenance:
    """Runs the maintenance jobs of every partition that no other process leads."""

    def __init__(
        self, store: Store, owner: str, retention: Retention = _RETENTION, *, random_unit: Callable[[], float]
    ) -> None:
        self._store = store
        self._owner = owner
        self._retention = retention
        self._random_unit = random_unit

    async def run(self) -> None:
        """Goes on until cancelled, then gives up its leaderships."""
        partitions = self._maintained(await self._store.partitions())
        if not partitions:  # of a server, which maintains its store itself
            await asyncio.Event().wait()
        running = [asyncio.create_task(partition.run()) for partition in partitions]
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for partition, task in zip(partitions, running, strict=True):
                partition.ending = True
                task.cancel()
            ended = await asyncio.gather(*running, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error

    def _maintained(self, partitions: Sequence[Store]) -> list[PartitionMaintenance]:
        balance = Balance(self._store, len(partitions), self._random_unit)
        return [
            PartitionMaintenance(
                partitions[n],
                n,
                self._owner,
                balance,
                woken=((Promoter(), 0), (Scheduler(self._store, n), _BETWEEN_LOOKS_MS)),
                jobs=(Reaper(), Pruner(self._retention)),
                random_unit=self._random_unit,
            )
            for n in balance.in_any_order()
        ]


class _GivenAway(Exception):
    """The process has more partitions than its share."""


class PartitionMaintenance:
    """Runs the maintenance jobs of one partition while this process leads it, and stands by while another does."""

    def __init__(
        self,
        store: Store,
        number: int,
        owner: str,
        balance: Balance,
        *,
        woken: Sequence[tuple[Job, int]],
        jobs: Sequence[Job],
        random_unit: Callable[[], float],
    ) -> None:
        self._store = store
        self._number = number
        self._owner = owner
        self._balance = balance
        self._random_unit = random_unit
        #: Jobs that also run on a wake-up, each with how long it ignores wake-ups after it has run.
        self._woken = woken
        self._jobs = jobs
        #: Set before it is cancelled: a task group that is ending because of an error swallows a cancellation.
        self.ending = False

    async def run(self) -> None:
        """Goes on until cancelled, then gives up the leadership."""
        try:
            while not self.ending:
                try:
                    await self._stand_by_or_serve()
                except* _GivenAway:
                    await self._let_go()
                    await self._sleep(_PAUSE_AFTER_GIVING_AWAY_MS)
                except* StaleEpoch as lost:
                    log.info("maintenance of partition %d: %s", self._number, lost.exceptions[0])
                except* HoldfastError as errors:
                    log.warning("maintenance of partition %d: %s", self._number, errors.exceptions[0])
                    await self._sleep(_PAUSE_AFTER_ERROR_MS)
        finally:
            await self._let_go()

    async def _stand_by_or_serve(self) -> None:
        await self._balance.give_way(self._number)
        try:
            leadership = await self._store.lead(MAINTENANCE, self._owner, LEADER_TTL_MS)
            if leadership.held:
                await self._serve(leadership.epoch)
        finally:
            self._balance.without(self._number)
        await self._sleep(min(leadership.expires_in_ms + 1, LEADER_TTL_MS))

    async def _serve(self, epoch: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep(epoch))
            wakeups = [asyncio.Event() for _ in self._woken]
            group.create_task(self._pass_on(wakeups))
            for (job, alone_ms), wakeup in zip(self._woken, wakeups, strict=True):
                group.create_task(self._repeat_when_woken(job, alone_ms, epoch, wakeup))
            for job in self._jobs:
                group.create_task(self._repeat(job, epoch))

    async def _keep(self, epoch: int) -> None:
        for renewal in itertools.count(1):
            await self._sleep(LEADER_TTL_MS // _RENEWALS_PER_TTL)
            if renewal % _RENEWALS_PER_BALANCE == 0 and await self._balance.gives_away(self._number):
                raise _GivenAway
            leadership = await self._store.lead(MAINTENANCE, self._owner, LEADER_TTL_MS)
            if not leadership.held or leadership.epoch != epoch:
                raise StaleEpoch(f"led by {leadership.owner} in epoch {leadership.epoch} now")

    async def _repeat(self, job: Job, epoch: int) -> None:
        while True:
            pause_ms = await job.run_once(self._store, epoch)
            await self._sleep(pause_ms)

    async def _repeat_when_woken(self, job: Job, alone_ms: int, epoch: int, wakeup: asyncio.Event) -> None:
        """Like `_repeat`, but exact: what is due is late by the time of a wake-up, not of a poll."""
        while True:
            wakeup.clear()
            pause_ms = await job.run_once(self._store, epoch)
            deaf_ms = min(alone_ms, pause_ms)
            await asyncio.sleep(deaf_ms / 1000)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout((pause_ms - deaf_ms) / 1000):
                    await wakeup.wait()

    async def _pass_on(self, wakeups: Sequence[asyncio.Event]) -> None:
        """Passes a wake-up, which wakes one waiter only, on to all jobs that wait for it."""
        now = asyncio.get_running_loop().time
        while True:
            until = now() + _LISTEN_MS / 1000
            heard = await self._store.wait([MAINTENANCE_WAKEUP], _LISTEN_MS)
            if heard or now() < until:  # back too early: wake-ups may have been lost
                for wakeup in wakeups:
                    wakeup.set()

    async def _sleep(self, milliseconds: int) -> None:
        """Sleeps for up to a tenth longer, so that many processes do not move in step."""
        await asyncio.sleep(milliseconds / 1000 * (1 + 0.1 * self._random_unit()))

    async def _let_go(self) -> None:
        try:
            await self._store.lead(MAINTENANCE, self._owner, 0)
        except HoldfastError as error:
            log.warning(
                "maintenance of partition %d: the leadership is not let go, it expires by itself: %s",
                self._number,
                error,
            )
