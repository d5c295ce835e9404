"""The model: what a store should hold, in plain Python, with `lifecycle.step` as the judge of every change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.core import lifecycle
from holdfast.core.ids import fencing_token
from holdfast.core.lifecycle import Change, Event, Standing, Verdict
from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.task import (
    FINAL_STATES,
    HISTORY_LIMIT,
    Attempt,
    Claimed,
    Enqueued,
    ExpiredClaim,
    Extension,
    Hold,
    NewTask,
    State,
    Task,
)
from holdfast.stores.contract import Promoted, Reserve, Retention
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.expect import expect, expect_true
from holdfast.testing.kit.model.entry import Entry
from holdfast.testing.kit.model.memos import Memos
from holdfast.testing.kit.model.order import expect_order
from holdfast.testing.kit.model.pruning import expect_pruned
from holdfast.testing.kit.model.schedules import Schedules

#: Stands for whatever a store writes.
CONFLICT: Final = "conflict"


class Model:
    """Tasks, deduplication, pauses and the epoch of the leader, on virtual time."""

    def __init__(self, clock: SteppedClock) -> None:
        self.clock = clock
        self.entries: dict[str, Entry] = {}
        self.requests: dict[tuple[str, str], str] = {}
        self.paused: set[str] = set()
        #: What a level of priority is worth, in queues where that is not the default.
        self.steps: dict[str, int] = {}
        self.schedules = Schedules()
        self.memos = Memos(clock)
        self.epoch = 0
        #: The ids of all tasks that were ever discarded.
        self.discards: set[str] = set()
        self.enqueued = self.discarded = self.pruned = 0
        self._newest_id = ""

    # -- enqueue --------------------------------------------------------------------------------------------

    def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """What a store answers to these; the text of a conflict is left to the store."""
        return [self._enqueue(task) for task in tasks]

    def _enqueue(self, task: NewTask) -> Enqueued:
        known = self.entries.get(task.task_id) or self._requested(task)
        if known is None:
            self._record(task)
            return Enqueued(task.task_id)
        there = known.envelope
        same = (there.queue, there.type, there.payload) == (task.queue, task.type, task.payload)
        return Enqueued(known.envelope.task_id, created=False, conflict=None if same else CONFLICT)

    def _requested(self, task: NewTask) -> Entry | None:
        if task.request_id is None:
            return None
        task_id = self.requests.get((task.queue, task.request_id))
        return None if task_id is None else self.entries[task_id]

    def _record(self, task: NewTask) -> None:
        now_ms = self.clock.now_ms()
        run_at_ms = now_ms + task.delay_ms if task.run_at_ms is None else task.run_at_ms
        ready = run_at_ms <= now_ms
        standing = Standing(State.READY if ready else State.SCHEDULED, max(run_at_ms, now_ms), priority=task.priority)
        self.enqueued += 1
        in_order = task.task_id > self._newest_id
        self._newest_id = max(self._newest_id, task.task_id)
        self.entries[task.task_id] = Entry(task, standing, self.enqueued, now_ms, fresh=ready and in_order)
        if task.request_id is not None:
            self.requests[task.queue, task.request_id] = task.task_id

    # -- changes --------------------------------------------------------------------------------------------

    def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """The verdicts, and their effect."""
        return [self._apply(change) for change in changes]

    def _apply(self, change: Change) -> Verdict:
        entry = self.entries.get(change.task_id)
        standing = entry.standing if entry else None
        verdict, after = lifecycle.step(standing, change, self.clock.now_ms(), self.epoch)
        if entry is None or not verdict.applied or verdict.repeated:
            return verdict
        if after is None:
            self._forget(entry)
            self.discarded += 1
            self.discards.add(change.task_id)
            return verdict
        if change.event in lifecycle.SETTLEMENTS:
            self._settled(entry, change)
        entry.fresh = entry.fresh and after.state is not State.READY
        entry.standing = after
        return verdict

    def _settled(self, entry: Entry, change: Change) -> None:
        line = Attempt(
            delivery=entry.standing.deliveries,
            attempt=entry.standing.attempt,
            worker_id=entry.worker_id,
            outcome=change.outcome,
            started_at_ms=entry.claimed_at_ms,
            ended_at_ms=self.clock.now_ms(),
            error=change.error,
        )
        entry.history.append(line)
        del entry.history[:-HISTORY_LIMIT]
        entry.result = change.result
        entry.claim, entry.claim_id = None, ""

    def _forget(self, entry: Entry) -> None:
        del self.entries[entry.envelope.task_id]
        if entry.envelope.request_id is not None:
            del self.requests[entry.envelope.queue, entry.envelope.request_id]

    # -- reserve and extend ---------------------------------------------------------------------------------

    def held(self, claim_id: str | None = None) -> list[Claimed]:
        """The claims that are current, or those of them that this claim_id holds."""
        entries = [entry for entry in self.entries.values() if claim_id in (None, entry.claim_id)]
        return [entry.claim for entry in entries if entry.claim]

    def reserve(self, request: Reserve, tasks: Sequence[Claimed]) -> None:
        """Checks what a store has handed out against the rules, and takes it over."""
        held = self.held(request.claim_id)
        if held and request.max_tasks:
            by_id = {claim.task_id: claim for claim in tasks}
            expect("tasks of a repeated claim_id", by_id, {claim.task_id: claim for claim in held})
            expect("tasks are handed out once", len(tasks), len(by_id))
            return
        taken = [self.entries.get(claim.task_id) for claim in tasks]
        expect_order(self._takeable(request), request, taken, self.steps)
        for claim in tasks:
            self._claim(self.entries[claim.task_id], request, claim)

    def _takeable(self, request: Reserve) -> list[Entry]:
        return [
            entry
            for entry in self.entries.values()
            if entry.standing.state is State.READY
            and entry.envelope.queue not in self.paused
            and (request.types is None or entry.envelope.type in request.types)
        ]

    def _claim(self, entry: Entry, request: Reserve, claim: Claimed) -> None:
        standing, task = entry.standing, entry.envelope
        expect_true(f"token {claim.token} was never given before", claim.token not in entry.tokens)
        entry.standing = msgspec.structs.replace(
            standing,
            state=lifecycle.target(standing.state, Event.RESERVE),
            attempt=standing.attempt + 1,
            deliveries=standing.deliveries + 1,
            token=claim.token,
            lease_expires_at_ms=self.clock.now_ms() + request.lease_ms,
        )
        envelope = (task.task_id, claim.token, task.type, task.queue, task.payload, task.headers, standing.priority)
        times = (entry.created_at_ms, self.clock.now_ms(), standing.run_at_ms)
        wanted = Claimed(*envelope, task.policy, entry.standing.attempt, *times)
        expect("claimed task", claim, wanted)
        expect("fencing token", fencing_token(claim.token), entry.standing.deliveries)
        entry.tokens.add(claim.token)
        entry.claim, entry.claim_id, entry.worker_id = claim, request.claim_id, request.worker_id
        entry.claimed_at_ms, entry.progress = self.clock.now_ms(), None

    def extend(self, holds: Sequence[Hold], lease_ms: int) -> list[Extension]:
        """The answers, and their effect."""
        return [self._extend(hold, lease_ms) for hold in holds]

    def objection(self, hold: Hold) -> str:
        """Why this claim is not current, empty if it is."""
        entry = self.entries.get(hold.task_id)
        if entry is None:
            return "unknown"
        return "" if entry.standing.token is not None and entry.standing.token == hold.token else "stale_claim"

    def _extend(self, hold: Hold, lease_ms: int) -> Extension:
        reason = self.objection(hold)
        if reason:
            return Extension(False, reason=reason)
        entry = self.entries[hold.task_id]
        lease_expires_at_ms = max(entry.standing.lease_expires_at_ms or 0, self.clock.now_ms() + lease_ms)
        entry.standing = msgspec.structs.replace(entry.standing, lease_expires_at_ms=lease_expires_at_ms)
        entry.progress = hold.progress or entry.progress
        return Extension(True, cancel_requested=entry.standing.cancel_requested)

    # -- maintenance ---------------------------------------------------------------------------------------------

    def promote(self) -> Promoted:
        """How many became ready, and when the next one is due."""
        now_ms = self.clock.now_ms()
        waiting = self._waiting()
        due = [entry for entry in waiting if entry.standing.run_at_ms <= now_ms]
        for entry in due:
            change = Change(Event.PROMOTE, entry.envelope.task_id)
            entry.standing = lifecycle.step(entry.standing, change, now_ms, self.epoch)[1] or entry.standing
        later = [entry.standing.run_at_ms - now_ms for entry in waiting if entry not in due]
        return Promoted(len(due), min(later, default=None))

    def _waiting(self) -> list[Entry]:
        states = lifecycle.sources(Event.PROMOTE)
        return [entry for entry in self.entries.values() if entry.standing.state in states]

    def expired(self) -> list[ExpiredClaim]:
        """The claims whose lease has expired, by task_id."""
        now_ms = self.clock.now_ms()
        lost = [
            entry for entry in self.entries.values() if (entry.standing.lease_expires_at_ms or now_ms + 1) <= now_ms
        ]
        return [
            ExpiredClaim(task.task_id, entry.standing.token or "", entry.standing.attempt, task.policy, entry.worker_id)
            for task, entry in sorted(((entry.envelope, entry) for entry in lost), key=lambda pair: pair[0].task_id)
        ]

    def unstarted(self) -> set[str]:
        """The tasks that were not started in time."""
        now_ms = self.clock.now_ms()
        return {task_id for task_id, entry in self.entries.items() if (entry.expires_at_ms or now_ms + 1) <= now_ms}

    def next_event_ms(self) -> int:
        """How long until the next task or schedule is due, or a lease, a deadline or a value ends; 0 for never."""
        times = [entry.standing.run_at_ms for entry in self._waiting()] + self._leases() + self.memos.ends()
        return self._soonest_ms(times + self._deadlines() + self.schedules.occurrences())

    def next_deadline_ms(self) -> int:
        """How long until the next deadline to start, 0 if none is to come."""
        return self._soonest_ms(self._deadlines())

    def _deadlines(self) -> list[int]:
        return [at_ms for entry in self.entries.values() if (at_ms := entry.expires_at_ms) is not None]

    def next_lease_ms(self) -> int:
        """How long until the next lease ends, 0 if none is to come."""
        return self._soonest_ms(self._leases())

    def _leases(self) -> list[int]:
        leases = [entry.standing.lease_expires_at_ms for entry in self.entries.values()]
        return [lease for lease in leases if lease is not None]

    def _soonest_ms(self, times: list[int]) -> int:
        return min((time - self.clock.now_ms() for time in times if time > self.clock.now_ms()), default=0)

    def finished(self) -> bool:
        """Whether there is something to prune."""
        return any(entry.standing.state in FINAL_STATES for entry in self.entries.values())

    def prune(self, retention: Retention, gone: set[str], answer: int) -> None:
        """Checks that those which went had to go, and forgets them."""
        expect_pruned(self.entries, retention, gone, self.clock.now_ms())
        expect("number of pruned tasks and memos", answer, len(gone) + self.memos.prune())
        self.pruned += len(gone)
        for task_id in gone:
            self._forget(self.entries[task_id])

    # -- comparing ------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, Counter[State]]:
        """How many tasks of each queue stand in each state."""
        numbers: dict[str, Counter[State]] = {queue: Counter() for queue in (*self.paused, *self.steps)}
        for entry in self.entries.values():
            numbers.setdefault(entry.envelope.queue, Counter())[entry.standing.state] += 1
        return numbers

    def step_ms(self, queue: str) -> int:
        """What a level of priority is worth in this queue."""
        return self.steps.get(queue, AGED_STEP_MS)

    def oldest_ready_ms(self, queue: str) -> int | None:
        """How long the oldest ready task of this queue has been waiting."""
        ready = [entry for entry in self.entries.values() if entry.standing.state is State.READY]
        since = [entry.standing.run_at_ms for entry in ready if entry.envelope.queue == queue]
        return self.clock.now_ms() - min(since) if since else None

    def expect_task(self, task: Task | None, task_id: str) -> None:
        """Fails unless the store's task is the model's."""
        entry = self.entries.get(task_id)
        if task is None or entry is None:
            expect(f"task {task_id} is known", task is not None, entry is not None)
        else:
            entry.expect_equal(task)
