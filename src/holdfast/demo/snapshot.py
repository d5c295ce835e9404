"""What the demo shows: one look at the store, and the rates since the last one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.admin.inspect import json_value, last_failure, with_history
from holdfast.core.task import WAITING_STATES, State, Task
from holdfast.stores.contract import Query, QueueCounts, Store

_RUNNING_SHOWN = 6
_DEAD_SHOWN = 4


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The demo's queues at one moment."""

    at_ms: int
    queues: list[QueueCounts]
    #: Tasks finished a second, by queue, since the snapshot before.
    rates: dict[str, float] = {}
    running: list[Task] = []
    dead: list[Task] = []

    def total(self, *states: State) -> int:
        """How many tasks stand in these states, over all queues."""
        return sum(_in(counts, *states) for counts in self.queues)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the demo: what was enqueued, and where all of it is."""

    enqueued: int
    succeeded: int
    dead_lettered: int
    waiting: int
    cancelled: int
    failed: int
    running: int
    url: str
    seconds: float
    worker_log: str

    @property
    def adds_up(self) -> bool:
        """Whether nothing was lost, nothing invented, and nothing left in the hands of a worker that has stopped."""
        found = (self.succeeded, self.dead_lettered, self.waiting, self.cancelled, self.failed)
        return self.enqueued == sum(found)


async def look(store: Store, queues: Sequence[str], now_ms: int, before: Snapshot | None = None) -> Snapshot:
    """A snapshot of these queues."""
    counts = [each for each in await store.counts() if each.queue in queues]
    return Snapshot(
        at_ms=now_ms,
        queues=counts,
        rates=_rates(counts, now_ms, before) if before else {},
        running=await _running(store, queues),
        dead=await _dead(store, queues),
    )


def summary(end: Snapshot, *, enqueued: int, url: str, seconds: float, worker_log: str) -> Summary:
    """What became of the tasks, by the last snapshot; `enqueued` was counted by the one who submitted."""
    return Summary(
        enqueued=enqueued,
        succeeded=end.total(State.SUCCEEDED),
        dead_lettered=end.total(State.DEAD_LETTERED),
        waiting=end.total(*WAITING_STATES),
        cancelled=end.total(State.CANCELLED),
        failed=end.total(State.FAILED),
        running=end.total(State.CLAIMED),
        url=url,
        seconds=seconds,
        worker_log=worker_log,
    )


def progress_of(task: Task) -> tuple[str, float]:
    """The note and the share done of a running task."""
    value = json_value(task.progress)
    if not isinstance(value, dict) or not value.get("total"):
        return task.type, 0.0
    return str(value.get("note") or task.type), float(value.get("done", 0)) / float(value["total"])


def error_of(task: Task) -> str:
    """The error that a dead letter died of."""
    failure = last_failure(task)
    return f"{failure.type.removeprefix('builtins.')}: {failure.message}" if failure else task.reason or ""


async def _running(store: Store, queues: Sequence[str]) -> list[Task]:
    found: list[Task] = []
    for queue in queues:
        page = await store.find(Query(states=frozenset({State.CLAIMED}), queue=queue, limit=50))
        found += [task for task in page.tasks if task.progress is not None]
    return sorted(found, key=lambda task: task.task_id)[:_RUNNING_SHOWN]


async def _dead(store: Store, queues: Sequence[str]) -> list[Task]:
    found: list[Task] = []
    for queue in queues:
        query = Query(states=frozenset({State.DEAD_LETTERED}), queue=queue, limit=_DEAD_SHOWN)
        found += (await with_history(store, await store.find(query))).tasks
    return sorted(found, key=lambda task: -(task.finished_at_ms or 0))[:_DEAD_SHOWN]


def _rates(counts: Sequence[QueueCounts], now_ms: int, before: Snapshot) -> dict[str, float]:
    seconds = max(now_ms - before.at_ms, 1) / 1000
    done_before = {each.queue: _in(each, State.SUCCEEDED) for each in before.queues}
    return {each.queue: (_in(each, State.SUCCEEDED) - done_before.get(each.queue, 0)) / seconds for each in counts}


def _in(counts: QueueCounts, *states: State) -> int:
    return sum(counts.states.get(state, 0) for state in states)
