"""The rules: what must be true when all faults are healed and everything has ended.

Each rule looks at the whole evidence and yields what is wrong. R1 to R15 are the names under which docs/faults.md
explains them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec

from chaos.journal import Journal, Order, Violation
from chaos.snapshot import Snapshot, place_of
from chaos.stale_settler import WORKER_ID as STALE_SETTLER
from chaos.tasks import DELAY_MS
from chaos.trace import Run
from holdfast.core.task import FINAL_STATES, Attempt, State, Task

#: Why a claim may have ended without success; "failed" is for flaky tasks only.
_CAUSES: Final = frozenset({"lease_expired", "worker_lost", "released"})
_SPARES_ATTEMPT: Final = frozenset({"released"})


@dataclass
class Evidence:
    """All that a run has left behind."""

    journal: Journal
    runs: list[Run]
    snapshot: Snapshot

    @cached_property
    def runs_by_task(self) -> dict[str, list[Run]]:
        """The runs of each task."""
        found: dict[str, list[Run]] = defaultdict(list)
        for run in self.runs:
            found[run.task_id].append(run)
        return found

    def order_of(self, task: Task) -> Order | None:
        """The order that this task was recorded for."""
        return self.journal.orders.get(task.request_id or "")


Rule = Callable[[Evidence], Iterator[Violation]]


def check(evidence: Evidence) -> list[Violation]:
    """Everything that is wrong, what was seen during the run first."""
    return [*evidence.journal.violations, *(violation for rule in RULES for violation in rule(evidence))]


def nothing_lost(evidence: Evidence) -> Iterator[Violation]:
    """R1: every acknowledged task has run and has succeeded."""
    for order in evidence.journal.orders.values():
        if order.task_id is None:
            continue
        task = evidence.snapshot.tasks.get(order.task_id)
        if task is None:
            yield Violation("R1 loss", f"{order.request_id} was acknowledged and is gone", order.task_id)
        elif task.state is not State.SUCCEEDED:
            yield Violation("R1 loss", f"{order.request_id} was acknowledged and is {task.state}", order.task_id)


def nothing_invented(evidence: Evidence) -> Iterator[Violation]:
    """R2: no task and no run that nobody ordered, and none with other arguments."""
    for task in evidence.snapshot.tasks.values():
        order = evidence.order_of(task)
        if order is None:
            yield Violation("R2 phantom", f"request_id {task.request_id} was never sent", task.task_id)
        elif msgspec.json.decode(task.payload) != {"number": order.number, "kind": order.kind}:
            yield Violation("R2 phantom", f"{order.request_id} has the arguments {task.payload!r}", task.task_id)
    for run in evidence.runs:
        known = evidence.snapshot.tasks.get(run.task_id)
        ordered = evidence.order_of(known) if known else None
        if ordered is None or ordered.number != run.number:
            yield Violation("R2 phantom", f"ran with number {run.number}, which was not ordered", run.task_id, run.at)


def one_task_a_request(evidence: Evidence) -> Iterator[Violation]:
    """R3: one request_id, one task, and it is the one that was acknowledged."""
    tasks = evidence.snapshot.tasks.values()
    for request_id, count in Counter(task.request_id for task in tasks).items():
        if count > 1:
            yield Violation("R3 dedup", f"{request_id} stands for {count} tasks")
    for task in tasks:
        order = evidence.order_of(task)
        if order and order.task_id not in {None, task.task_id}:
            yield Violation("R3 dedup", f"{order.request_id} was acknowledged as {order.task_id}", task.task_id)


def one_claim_at_a_time(evidence: Evidence) -> Iterator[Violation]:
    """R4: claims are numbered 1, 2, 3… and none began before the one before it had ended."""
    for task in evidence.snapshot.tasks.values():
        if [attempt.delivery for attempt in task.history] != list(range(1, task.deliveries + 1)):
            claims = [attempt.delivery for attempt in task.history]
            yield Violation("R4 claims", f"has the claims {claims}, {task.deliveries} were counted", task.task_id)
        for before, after in zip(task.history, task.history[1:], strict=False):
            if after.started_at_ms < before.ended_at_ms:
                yield Violation("R4 claims", f"claim {after.delivery} began before the last one ended", task.task_id)


def settled_once(evidence: Evidence) -> Iterator[Violation]:
    """R5: a task that succeeded did so once, at last, and not by a settlement that came too late."""
    for task in evidence.snapshot.tasks.values():
        outcomes = [attempt.outcome for attempt in task.history]
        if task.state is State.SUCCEEDED and (outcomes.count("succeeded") != 1 or outcomes[-1] != "succeeded"):
            yield Violation("R5 fencing", f"succeeded with the outcomes {outcomes}", task.task_id)
        if any(each.worker_id == STALE_SETTLER and each.outcome == "succeeded" for each in task.history):
            yield Violation("R5 fencing", "was settled by the stale settler", task.task_id)


def attempts_add_up(evidence: Evidence) -> Iterator[Violation]:
    """R6: each claim uses up one attempt, unless it was handed back."""
    for task in evidence.snapshot.tasks.values():
        spared = 0
        for attempt in task.history:
            if attempt.attempt != attempt.delivery - spared:
                text = f"claim {attempt.delivery} was attempt {attempt.attempt}, with {spared} handed back"
                yield Violation("R6 attempts", text, task.task_id)
            spared += attempt.outcome in _SPARES_ATTEMPT


def none_too_early(evidence: Evidence) -> Iterator[Violation]:
    """R7: no delayed task was claimed before its time."""
    for task in evidence.snapshot.tasks.values():
        order = evidence.order_of(task)
        if order and order.kind == "delayed" and task.history:
            early_ms = task.created_at_ms + DELAY_MS - task.history[0].started_at_ms
            if early_ms > 0:
                yield Violation("R7 due", f"was claimed {early_ms} ms too early", task.task_id)


def counts_add_up(evidence: Evidence) -> Iterator[Violation]:
    """R8: every task is in one set, that of its state; counters are right; nothing is left over."""
    snapshot = evidence.snapshot
    for task in snapshot.tasks.values():
        if snapshot.places.get(task.task_id) != [place_of(task.state)]:
            places = snapshot.places.get(task.task_id)
            yield Violation("R8 counts", f"is {task.state} and stands in {places}", task.task_id)
        if task.state not in FINAL_STATES:
            yield Violation("R8 counts", f"is still {task.state}", task.task_id)
    for task_id in snapshot.places.keys() - snapshot.tasks.keys():
        yield Violation("R8 counts", f"stands in {snapshot.places[task_id]} without a record", task_id)
    counted = Counter((task.queue, task.state) for task in snapshot.tasks.values())
    for queue, state in counted.keys() | snapshot.counts.keys():
        said, found = snapshot.counts[queue, state], counted[queue, state]
        if said != found:
            yield Violation("R8 counts", f"{queue}: {said} {state} are counted, {found} are there")


def results_are_the_winners(evidence: Evidence) -> Iterator[Violation]:
    """R14: the stored result is that of the claim that succeeded."""
    for task in evidence.snapshot.tasks.values():
        if task.state is State.SUCCEEDED and task.result != str(task.deliveries).encode():
            yield Violation("R14 result", f"claim {task.deliveries} won, the result is {task.result!r}", task.task_id)


def runs_have_claims(evidence: Evidence) -> Iterator[Violation]:
    """R15: each run had a claim of its own, which its task knows, and the one that succeeded has really run."""
    for run in evidence.runs:
        task, tokens = evidence.snapshot.tasks.get(run.task_id), evidence.snapshot.tokens[run.task_id]
        attempts = {each.delivery: each.attempt for each in task.history} if task else {}
        if tokens.get(run.delivery) != run.token:
            text = f"ran with {run.token}, claim {run.delivery} is {tokens.get(run.delivery)}"
            yield Violation("R15 unclaimed", text, run.task_id, run.at)
        elif attempts.get(run.delivery) != run.attempt:
            text = f"ran as attempt {run.attempt}, claim {run.delivery} is {attempts.get(run.delivery)}"
            yield Violation("R15 unclaimed", text, run.task_id, run.at)
    for task in evidence.snapshot.tasks.values():
        deliveries = [run.delivery for run in evidence.runs_by_task.get(task.task_id, [])]
        if len(set(deliveries)) < len(deliveries):
            yield Violation("R15 unclaimed", f"ran more than once under one claim: {deliveries}", task.task_id)
        if task.state is State.SUCCEEDED and task.deliveries not in deliveries:
            yield Violation("R15 unclaimed", f"succeeded and only {deliveries} have run", task.task_id)


def repeats_have_causes(evidence: Evidence) -> Iterator[Violation]:
    """R15: whatever ran again has it in its history why."""
    for task in evidence.snapshot.tasks.values():
        order = evidence.order_of(task)
        for attempt in task.history:
            if attempt.outcome != "succeeded" and not _is_explained(attempt, order):
                yield Violation("R15 cause", f"claim {attempt.delivery} ended with {attempt.outcome}", task.task_id)


def _is_explained(attempt: Attempt, order: Order | None) -> bool:
    flaky = order is not None and order.kind == "flaky" and attempt.attempt == 1
    return attempt.outcome in _CAUSES or (attempt.outcome == "failed" and flaky)


RULES: Final[tuple[Rule, ...]] = (
    nothing_lost,
    nothing_invented,
    one_task_a_request,
    one_claim_at_a_time,
    settled_once,
    attempts_add_up,
    none_too_early,
    counts_add_up,
    results_are_the_winners,
    runs_have_claims,
    repeats_have_causes,
)
