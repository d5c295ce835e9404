"""Is everything in order? The store's own findings, and what follows from its tasks and workers."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator

import msgspec

from holdfast.admin.inspect import about_ms, every_page, several
from holdfast.clock import Clock, SystemClock
from holdfast.core.schedule.record import Schedule
from holdfast.core.task import WAITING_STATES, State
from holdfast.stores import documents
from holdfast.stores.contract import Expired, Finding, Query, QueueCounts, Store, WorkerRecord
from holdfast.version import __version__

#: Tasks that wait longer than this for a worker that does not exist are a problem, not a worker just starting.
_WAIT_LIMIT_MS = 60_000
#: A lease may be expired for this long before that is a problem: maintenance checks about once a second.
_EXPIRED_LIMIT_MS = 15_000
#: How many waiting tasks are checked for types that no worker knows.
_TYPES_LIMIT = 10_000
#: At most this many findings of one kind are listed.
_LISTED = 20
MAX_DEAD_LETTERS = 1_000


class StoreSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks look at."""

    now_ms: int
    workers: list[WorkerRecord]
    counts: list[QueueCounts]

    @property
    def alive(self) -> list[WorkerRecord]:
        """The workers that were heard of in time."""
        return [worker for worker in self.workers if worker.alive]

    @property
    def served(self) -> set[str]:
        """The queues that have a worker."""
        return {queue for worker in self.alive for queue in worker.queues}

    @property
    def runnable(self) -> set[tuple[str, str]]:
        """The pairs of queue and type for which there is a worker."""
        kinds = {(worker.queues, worker.types) for worker in self.alive}
        return {(queue, name) for queues, types in kinds for queue in queues for name in types}


async def examine(
    store: Store, *, max_dead_letters: int = MAX_DEAD_LETTERS, clock: Clock | None = None
) -> list[Finding]:
    """All findings, in a fixed order; one of level `problem` means that the operator has to act."""
    findings = [_versions(), *await store.probe()]
    now_ms = (clock or SystemClock()).now_ms()
    snapshot = StoreSnapshot(now_ms=now_ms, workers=await store.workers(), counts=await store.counts())
    findings += _workers(snapshot)
    findings += _unserved_queues(snapshot)
    findings += _full_queues(snapshot)
    findings += _paused_queues(snapshot)
    findings += await _unknown_types(store, snapshot)
    expired = await store.expired()
    findings += await _stuck_claims(store, expired, snapshot)
    findings += await _unstarted(store, expired, snapshot)
    findings += _schedules(await documents.schedules(store), snapshot)
    findings.append(_dead_letters(snapshot, max_dead_letters))
    return findings


def _versions() -> Finding:
    return Finding(level="ok", check="versions", text=f"Holdfast {__version__}, Python {platform.python_version()}")


def _workers(snapshot: StoreSnapshot) -> list[Finding]:
    findings = [
        Finding(
            level="warning",
            check="workers",
            text=f"worker {worker.worker_id} has not been heard of for {about_ms(snapshot.now_ms - worker.seen_at_ms)}",
        )
        for worker in snapshot.workers
        if not worker.alive
    ]
    slots = sum(worker.processes * worker.concurrency for worker in snapshot.alive)
    if snapshot.alive:
        text = f"{several(len(snapshot.alive), 'worker')} with {several(slots, 'slot')}"
        findings.append(Finding(level="ok", check="workers", text=text))
    else:
        findings.append(_no_worker(snapshot))
    versions = sorted({worker.version for worker in snapshot.alive} - {__version__})
    if versions:
        text = f"workers of other versions are running: {', '.join(versions)} (this is {__version__})"
        findings.append(Finding(level="note", check="versions", text=text))
    return findings


def _no_worker(snapshot: StoreSnapshot) -> Finding:
    waiting = sum(counts.states.get(state, 0) for counts in snapshot.counts for state in WAITING_STATES)
    if not waiting:
        return Finding(level="note", check="workers", text="no worker is running")
    return Finding(level="warning", check="workers", text=f"no worker is running; waiting: {several(waiting, 'task')}")


def _unserved_queues(snapshot: StoreSnapshot) -> list[Finding]:
    served, findings = snapshot.served, []
    for counts in snapshot.counts:
        ready = counts.states.get(State.READY, 0)
        if ready == 0 or counts.queue in served or counts.paused:
            continue
        waited_ms = counts.oldest_ready_ms or 0
        text = (
            f"{several(ready, 'task')} in queue {counts.queue} for up to {about_ms(waited_ms)}, and no worker serves it"
        )
        findings.append(
            Finding(level="problem" if waited_ms > _WAIT_LIMIT_MS else "warning", check="queues", text=text)
        )
    return findings or [Finding(level="ok", check="queues", text="every queue with ready tasks has a worker")]


def _full_queues(snapshot: StoreSnapshot) -> Iterator[Finding]:
    """Queues whose workers have no free slot: they are behind, or their runs wait for tasks that cannot start."""
    for counts in snapshot.counts:
        ready, waited_ms = counts.states.get(State.READY, 0), counts.oldest_ready_ms or 0
        slots = sum(each.processes * each.concurrency for each in snapshot.alive if counts.queue in each.queues)
        full = 0 < slots <= counts.states.get(State.CLAIMED, 0)
        if full and ready and waited_ms > _WAIT_LIMIT_MS and not counts.paused:
            where = f"in queue {counts.queue} for up to {about_ms(waited_ms)}, and {_all_slots(slots)}"
            text = f"{several(ready, 'task')} {where}: if running tasks wait for others of this queue, add slots"
            yield Finding(level="note", check="queues", text=text)


def _all_slots(slots: int) -> str:
    return "the only slot is busy" if slots == 1 else f"all {slots:,} slots are busy"


def _paused_queues(snapshot: StoreSnapshot) -> list[Finding]:
    return [
        Finding(
            level="note",
            check="queues",
            text=f"queue {counts.queue} is paused with {several(counts.states.get(State.READY, 0), 'ready task')}",
        )
        for counts in snapshot.counts
        if counts.paused
    ]


async def _unknown_types(store: Store, snapshot: StoreSnapshot) -> list[Finding]:
    if not snapshot.alive:
        return []
    served, runnable = snapshot.served, snapshot.runnable
    unknown: Counter[tuple[str, str]] = Counter()
    looked_at = 0
    async for tasks in every_page(store, Query(states=WAITING_STATES), _TYPES_LIMIT):
        looked_at += len(tasks)
        found = [(task.queue, task.type) for task in tasks if task.queue in served]
        unknown.update(pair for pair in found if pair not in runnable)
    findings = [
        Finding(
            level="warning",
            check="types",
            text=f"{several(count, 'waiting task')} of type {name}, which no running worker of queue {queue} knows",
        )
        for (queue, name), count in unknown.most_common(_LISTED)
    ]
    which = "every waiting task" if looked_at < _TYPES_LIMIT else f"each of the newest {looked_at:,} waiting tasks"
    return findings or [Finding(level="ok", check="types", text=f"{which} has a type that a worker knows")]


async def _stuck_claims(store: Store, expired: Expired, snapshot: StoreSnapshot) -> list[Finding]:
    claimed = await store.get([claim.task_id for claim in expired.claims])
    late_ms = [snapshot.now_ms - task.lease_expires_at_ms for task in claimed if task and task.lease_expires_at_ms]
    if not late_ms or max(late_ms) <= _EXPIRED_LIMIT_MS:
        return [Finding(level="ok", check="claims", text="no claim is stuck")]
    text = (
        f"{several(len(late_ms), 'claim')} expired up to {about_ms(max(late_ms))} ago, and no process took them back: "
        "start a worker, it does the maintenance too"
    )
    return [Finding(level="problem", check="claims", text=text)]


async def _unstarted(store: Store, expired: Expired, snapshot: StoreSnapshot) -> list[Finding]:
    (oldest,) = await store.get(expired.unstarted[:1]) or [None]
    late_ms = snapshot.now_ms - oldest.created_at_ms - (oldest.policy.expires_ms or 0) if oldest else 0
    if late_ms <= _EXPIRED_LIMIT_MS:
        return []
    text = (
        f"{several(len(expired.unstarted), 'task')} should have been started up to {about_ms(late_ms)} ago, and no "
        "process lets them expire: start a worker, it does the maintenance too"
    )
    return [Finding(level="problem", check="deadlines", text=text)]


def _schedules(found: documents.DueSchedules, snapshot: StoreSnapshot) -> list[Finding]:
    runnable = snapshot.runnable if snapshot.alive else {(each.call.queue, each.call.type) for each in found.schedules}
    findings = [finding for schedule in found.schedules for finding in _schedule(schedule, found.now_ms, runnable)]
    if not found.schedules or findings:
        return findings[:_LISTED]
    return [Finding(level="ok", check="schedules", text=f"{several(len(found.schedules), 'schedule')} on time")]


def _schedule(schedule: Schedule, now_ms: int, runnable: set[tuple[str, str]]) -> Iterator[Finding]:
    name, call = f"schedule {schedule.name}", schedule.call
    if schedule.paused:
        yield Finding(level="note", check="schedules", text=f"{name} is paused")
        return
    if schedule.next_at_ms is not None and now_ms - schedule.next_at_ms > _WAIT_LIMIT_MS:
        text = (
            f"{name} was due {about_ms(now_ms - schedule.next_at_ms)} ago: start a worker, it does the maintenance too"
        )
        yield Finding(level="problem", check="schedules", text=text)
    if (call.queue, call.type) not in runnable:
        text = f"{name} makes tasks of type {call.type}, which no running worker of queue {call.queue} knows"
        yield Finding(level="warning", check="schedules", text=text)


def _dead_letters(snapshot: StoreSnapshot, most: int) -> Finding:
    depth = sum(counts.states.get(State.DEAD_LETTERED, 0) for counts in snapshot.counts)
    if depth > most:
        text = f"{several(depth, 'dead letter')}, more than {most:,}; see `holdfast dead ls --by-error`"
        return Finding(level="problem", check="dead letters", text=text)
    return Finding(level="note" if depth else "ok", check="dead letters", text=several(depth, "dead letter"))
