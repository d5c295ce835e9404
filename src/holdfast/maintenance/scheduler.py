"""Occurrences become tasks: the leader of a partition enqueues those of its schedules, each of them once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.ids import partition_of
from holdfast.core.schedule.decide import Decision, decide, watched_task
from holdfast.core.schedule.occurrences import shown_time, task_of_occurrence
from holdfast.core.schedule.record import Schedule
from holdfast.core.task import FINAL_STATES
from holdfast.errors import StaleEpoch, StoreUnavailable
from holdfast.stores import documents
from holdfast.stores.contract import Store

#: The store is also checked without a wake-up: a lost one costs at most this delay.
_SAFETY_POLL_MS = 1_000
#: After some have moved on, before the next look.
_BREATH_MS = 5
_BATCH = 1_000
#: Schedules that are worked on at the same time.
_AT_ONCE = 32
#: Occurrences of one schedule that are enqueued in one call, which carries all their payloads.
_OCCURRENCES_AT_ONCE = 100
#: A schedule whose occurrences cannot be enqueued is tried each time, and logged once in this many tries.
_LOOKS_PER_COMPLAINT = 60
log = logging.getLogger(__name__)


class Scheduler:
    """Enqueues the occurrences that are due in one partition, and knows when the next one is."""

    def __init__(self, everywhere: Store, partition: int) -> None:
        #: The last task of a schedule lies in another partition if its queue was changed since.
        self._everywhere = everywhere
        self._partition = partition
        #: How many stayed due, since they wait or cannot be fired: they must not crowd out the others.
        self._stuck = 0
        self._complaints: dict[str, int] = {}

    async def run_once(self, store: Store, epoch: int) -> int:
        """Enqueues what is due; returns how many milliseconds until the next occurrence."""
        found = await documents.schedules(store, _SAFETY_POLL_MS, _BATCH + self._stuck)
        due = [each for each in found.schedules if (each.next_at_ms or 0) <= found.now_ms]
        moved = await self._occurrence_all(store, due, found.now_ms, epoch)
        self._stuck = len(due) - moved
        if moved:
            return _BREATH_MS
        coming = [each.next_at_ms for each in found.schedules if (each.next_at_ms or 0) > found.now_ms]
        return min((each - found.now_ms for each in coming if each is not None), default=_SAFETY_POLL_MS)

    async def _occurrence_all(self, store: Store, due: Sequence[Schedule], now_ms: int, epoch: int) -> int:
        moved = 0
        for start in range(0, len(due), _AT_ONCE):
            portion = due[start : start + _AT_ONCE]
            firing = (self._occurrence(store, each, now_ms, epoch) for each in portion)
            for answer in await asyncio.gather(*firing, return_exceptions=True):
                if isinstance(answer, BaseException):
                    raise answer
                moved += answer
        return moved

    async def _occurrence(self, store: Store, schedule: Schedule, now_ms: int, epoch: int) -> bool:
        """Whether the schedule has moved on, by this or another process; its errors do not stop other schedules."""
        try:
            active = await self._is_active(schedule)
            decision = decide(schedule, now_ms, active=active, limit=_OCCURRENCES_AT_ONCE)
            if decision is not None:
                await self._execute(store, schedule, decision, epoch)
        except (StaleEpoch, StoreUnavailable):
            raise
        except Exception as error:  # noqa: BLE001  (a schedule that cannot be fired must not stop the others)
            self._complain(schedule, error)
            return False
        self._complaints.pop(schedule.name, None)
        return decision is not None

    async def _is_active(self, schedule: Schedule) -> bool:
        last = watched_task(schedule)
        if last is None:
            return False
        try:
            (task,) = await self._everywhere.get([last])
        except StoreUnavailable:
            if partition_of(last) == self._partition:
                raise
            return True  # it cannot be known while its partition is away
        return task is not None and task.state not in FINAL_STATES

    async def _execute(self, store: Store, schedule: Schedule, decision: Decision, epoch: int) -> None:
        new = decision.schedule
        tasks = [task_of_occurrence(schedule, occurrence, self._partition) for occurrence in decision.occurrences]
        if tasks:
            new = replace(new, last_task_id=tasks[-1].task_id)
        if new.skipped_at_ms not in {None, schedule.skipped_at_ms}:
            _tell_skipped(new)
        # A refusal means that another client has changed the schedule meanwhile: it is read anew.
        await documents.put_schedule(store, schedule.name, new, schedule.version, tasks, epoch)

    def _complain(self, schedule: Schedule, error: Exception) -> None:
        looks = self._complaints.get(schedule.name, 0)
        self._complaints[schedule.name] = looks + 1
        if looks % _LOOKS_PER_COMPLAINT == 0:
            occurrence = shown_time(schedule.next_at_ms or 0)
            log.error("schedule %s: its occurrence of %s cannot be made yet: %s", schedule.name, occurrence, error)


def _tell_skipped(schedule: Schedule) -> None:
    since = shown_time(schedule.skipped_at_ms or 0)
    overlap = schedule.skipped_because == "overlap"
    why = "its last task has not ended" if overlap else "no process could make them in time"
    log.info("schedule %s: occurrences from %s on are skipped: %s", schedule.name, since, why)
