"""The loop around the chores: one owner a partition at a time, errors kept apart, no chore waits for another."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.clock import SystemClock
from holdfast.core.ids import IdSource
from holdfast.errors import HoldfastError, StaleEpoch
from holdfast.maintenance.balance import Balance
from holdfast.maintenance.expirer import Expirer
from holdfast.maintenance.promoter import Promoter
from holdfast.maintenance.pruner import Pruner
from holdfast.maintenance.reaper import Reaper
from holdfast.maintenance.scheduler import Scheduler
from holdfast.stores.contract import UPKEEP_BELL, UPKEEP_DUTY, Retention, Store

#: An owner that dies is replaced after this long at most.
DUTY_TTL_MS = 5_000
_RENEWALS_PER_TTL = 3
#: An owner asks itself this often whether it looks after more than its share.
_RENEWALS_PER_BALANCE = 6
#: Long enough for another process to notice that a partition is free.
_PAUSE_AFTER_GIVING_AWAY_MS = 2 * DUTY_TTL_MS
_PAUSE_AFTER_ERROR_MS = 1_000
_LISTEN_MS = 5_000
#: Rings are mostly for delayed tasks: the schedules, which are seldom new, are not looked at for each of them.
_BETWEEN_LOOKS_MS = 50
log = logging.getLogger(__name__)


class Chore(Protocol):
    """One duty, one small class."""

    async def run_once(self, store: Store, epoch: int) -> int:
        """Does one portion; answers how many milliseconds until it wants to run again."""
        ...


class Upkeep:
    """Runs the chores of every partition of a store that no other process looks after."""

    def __init__(self, store: Store, owner: str, retention: Retention, *, random_unit: Callable[[], float]) -> None:
        partitions = store.partitions()
        balance = Balance(store, len(partitions), random_unit)
        ids = IdSource(SystemClock().now_ms, os.urandom)
        self._partitions = [
            PartitionUpkeep(
                partitions[n],
                n,
                owner,
                balance,
                rung=((Promoter(), 0), (Scheduler(store, n, ids), _BETWEEN_LOOKS_MS)),
                chores=(Reaper(), Expirer(), Pruner(retention)),
                random_unit=random_unit,
            )
            for n in balance.in_any_order()
        ]

    async def run(self) -> None:
        """Goes on until cancelled, then lets the duties go."""
        if not self._partitions:  # of a gateway, which looks after its store itself
            await asyncio.Event().wait()
        running = [asyncio.create_task(partition.run()) for partition in self._partitions]
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for partition, task in zip(self._partitions, running, strict=True):
                partition.ending = True
                task.cancel()
            ended = await asyncio.gather(*running, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error


class _GivenAway(Exception):
    """The process has more partitions than its share."""


class PartitionUpkeep:
    """Runs the chores of one partition while this process owns them, and stands by while another does."""

    def __init__(
        self,
        store: Store,
        number: int,
        owner: str,
        balance: Balance,
        *,
        rung: Sequence[tuple[Chore, int]],
        chores: Sequence[Chore],
        random_unit: Callable[[], float],
    ) -> None:
        self._store = store
        self._number = number
        self._owner = owner
        self._balance = balance
        self._random_unit = random_unit
        #: Those that also run when the bell is rung, each with how long it is left alone after it has run.
        self._rung = rung
        self._chores = chores
        #: Set before it is cancelled: a task group that is ending because of an error swallows a cancellation.
        self.ending = False

    async def run(self) -> None:
        """Goes on until cancelled, then lets the duty go."""
        try:
            while not self.ending:
                try:
                    await self._stand_by_or_serve()
                except* _GivenAway:
                    await self._let_go()
                    await self._sleep(_PAUSE_AFTER_GIVING_AWAY_MS)
                except* StaleEpoch as lost:
                    log.info("upkeep of partition %d: %s", self._number, lost.exceptions[0])
                except* HoldfastError as errors:
                    log.warning("upkeep of partition %d: %s", self._number, errors.exceptions[0])
                    await self._sleep(_PAUSE_AFTER_ERROR_MS)
        finally:
            await self._let_go()

    async def _stand_by_or_serve(self) -> None:
        await self._balance.give_way(self._number)
        try:
            duty = await self._store.hold_duty(UPKEEP_DUTY, self._owner, DUTY_TTL_MS)
            if duty.held:
                await self._serve(duty.epoch)
        finally:
            self._balance.without(self._number)
        await self._sleep(min(duty.expires_in_ms + 1, DUTY_TTL_MS))

    async def _serve(self, epoch: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep(epoch))
            bells = [asyncio.Event() for _ in self._rung]
            group.create_task(self._pass_on(bells))
            for (chore, alone_ms), bell in zip(self._rung, bells, strict=True):
                group.create_task(self._repeat_when_rung(chore, alone_ms, epoch, bell))
            for chore in self._chores:
                group.create_task(self._repeat(chore, epoch))

    async def _keep(self, epoch: int) -> None:
        for renewal in itertools.count(1):
            await self._sleep(DUTY_TTL_MS // _RENEWALS_PER_TTL)
            if renewal % _RENEWALS_PER_BALANCE == 0 and await self._balance.gives_away(self._number):
                raise _GivenAway
            duty = await self._store.hold_duty(UPKEEP_DUTY, self._owner, DUTY_TTL_MS)
            if not duty.held or duty.epoch != epoch:
                raise StaleEpoch(f"owned by {duty.owner} in epoch {duty.epoch} now")

    async def _repeat(self, chore: Chore, epoch: int) -> None:
        while True:
            pause_ms = await chore.run_once(self._store, epoch)
            await self._sleep(pause_ms)

    async def _repeat_when_rung(self, chore: Chore, alone_ms: int, epoch: int, bell: asyncio.Event) -> None:
        """Like `_repeat`, but exact: what is due is late by the time of a wake-up, not of a poll."""
        while True:
            bell.clear()
            pause_ms = await chore.run_once(self._store, epoch)
            deaf_ms = min(alone_ms, pause_ms)
            await asyncio.sleep(deaf_ms / 1000)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout((pause_ms - deaf_ms) / 1000):
                    await bell.wait()

    async def _pass_on(self, bells: Sequence[asyncio.Event]) -> None:
        """One ring wakes one waiter: this one, which wakes all chores that wait for it."""
        now = asyncio.get_running_loop().time
        while True:
            until = now() + _LISTEN_MS / 1000
            heard = await self._store.wait([UPKEEP_BELL], _LISTEN_MS)
            if heard or now() < until:  # back too early: rings may have gone unheard
                for bell in bells:
                    bell.set()

    async def _sleep(self, milliseconds: int) -> None:
        """Sleeps for up to a tenth longer, so that many processes do not move in step."""
        await asyncio.sleep(milliseconds / 1000 * (1 + 0.1 * self._random_unit()))

    async def _let_go(self) -> None:
        try:
            await self._store.hold_duty(UPKEEP_DUTY, self._owner, 0)
        except HoldfastError as error:
            log.warning(
                "upkeep of partition %d: the duty is not let go, it runs out by itself: %s", self._number, error
            )
