"""The rules: what must be true when all faults are healed and everything has ended.

Each rule looks at the whole evidence and yields what is wrong. R1 to R20 are the names under which docs/faults.md
explains them; some are seen while the run goes on (chaos/field.py, chaos/stresses.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec

from chaos.journal import Journal, Order, Violation
from chaos.poison import POISONS
from chaos.snapshot import Snapshot, place_of
from chaos.stale_settler import WORKER_ID as STALE_SETTLER
from chaos.tasks import DELAY_MS
from chaos.trace import Run
from holdfast.core.task import FINAL_STATES, HISTORY_LIMIT, Attempt, State, Task

#: Why a claim may have ended without success; "failed" is for flaky tasks only.
_CAUSES: Final = frozenset({"lease_expired", "worker_lost", "released"})
_SPARES_ATTEMPT: Final = frozenset({"released", "snoozed"})
#: How a worker loses a claim that it has not given back.
_LOST: Final = frozenset({"lease_expired", "worker_lost"})
#: The last quarter of a time with a snapshot, compared with the first.
_LEAST_PACE: Final = 0.7
_POISONS: Final = frozenset(poison.name for poison in POISONS)


@dataclass
class Evidence:
    """All that a run has left behind."""

    journal: Journal
    runs: list[Run]
    snapshot: Snapshot
    #: Whether nothing was done that may cost a worker a claim.
    spares_claims: bool = False

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
    """R1: every acknowledged task has run and has succeeded, or has ended as a poison task should (R17)."""
    for order in evidence.journal.orders.values():
        if order.task_id is None:
            continue
        task = evidence.snapshot.tasks.get(order.task_id)
        if task is None:
            yield Violation("R1 loss", f"{order.request_id} was acknowledged and is gone", order.task_id)
        elif task.state not in order.ends:
            rule = "R17 poison" if order.kind in _POISONS else "R1 loss"
            text = f"{order.request_id} ({order.kind}) was acknowledged and is {task.state}"
            yield Violation(rule, text, order.task_id)


def nothing_invented(evidence: Evidence) -> Iterator[Violation]:
    """R2: no task and no run without an order, and none with other arguments."""
    for task in evidence.snapshot.tasks.values():
        order = evidence.order_of(task)
        if order is None:
            yield Violation("R2 phantom", f"request_id {task.request_id} was never sent", task.task_id)
        elif msgspec.json.decode(task.payload) != order.arguments:
            yield Violation("R2 phantom", f"{order.request_id} has the arguments {task.payload[:100]!r}", task.task_id)
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
        first = max(1, task.deliveries - HISTORY_LIMIT + 1)
        if [attempt.delivery for attempt in task.history] != list(range(first, task.deliveries + 1)):
            claims = [attempt.delivery for attempt in task.history]
            yield Violation("R4 claims", f"has the claims {claims}, {task.deliveries} were counted", task.task_id)
        for before, after in zip(task.history, task.history[1:], strict=False):
            if after.started_at_ms < before.ended_at_ms and not evidence.journal.steps:
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
    """R6: each claim uses up one attempt, unless it was released."""
    for task in evidence.snapshot.tasks.values():
        spared = 0
        for attempt in task.history if task.deliveries <= HISTORY_LIMIT else ():
            if attempt.attempt != attempt.delivery - spared:
                text = f"claim {attempt.delivery} was attempt {attempt.attempt}, with {spared} released"
                yield Violation("R6 attempts", text, task.task_id)
            spared += attempt.outcome in _SPARES_ATTEMPT


def none_too_early(evidence: Evidence) -> Iterator[Violation]:
    """R7: no delayed task was claimed before its time."""
    for task in evidence.snapshot.tasks.values():
        order = evidence.order_of(task)
        if order and order.kind == "delayed" and task.history and not evidence.journal.steps:
            early_ms = task.created_at_ms + DELAY_MS - task.history[0].started_at_ms
            if early_ms > 0:
                yield Violation("R7 due", f"was claimed {early_ms} ms too early", task.task_id)
        if order and order.kind == "later" and task.history:
            yield Violation("R7 due", "was claimed half an hour too early", task.task_id)
    if evidence.journal.steps:
        yield from _none_too_early_by_real_time(evidence)


def _none_too_early_by_real_time(evidence: Evidence) -> Iterator[Violation]:
    """The same where the clock was stepped: for tasks whose wait it was not stepped in."""
    for task_id, runs in evidence.runs_by_task.items():
        task = evidence.snapshot.tasks.get(task_id)
        order = evidence.order_of(task) if task else None
        if order is None or order.kind != "delayed":
            continue
        started_at = min(run.at for run in runs)
        if any(order.sent_at <= step <= started_at for step in evidence.journal.steps):
            continue
        early_ms = DELAY_MS - (started_at - order.sent_at) * 1_000
        if early_ms > 0:
            yield Violation("R7 due", f"ran {early_ms:.0f} ms too early", task_id, started_at)


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
        order = evidence.order_of(task)
        if order and order.kind in _POISONS:
            continue
        if task.state is State.SUCCEEDED and task.result != str(task.deliveries).encode():
            yield Violation("R14 result", f"claim {task.deliveries} won, the result is {task.result!r}", task.task_id)


def runs_have_claims(evidence: Evidence) -> Iterator[Violation]:
    """R15: each run had a claim of its own, which its task knows, and the one that succeeded has really run."""
    for run in evidence.runs:
        task, tokens = evidence.snapshot.tasks.get(run.task_id), evidence.snapshot.tokens[run.task_id]
        attempts = {each.delivery: each.attempt for each in task.history} if task else {}
        if task and run.delivery <= task.deliveries - HISTORY_LIMIT:
            continue  # so old a claim is not remembered
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
        for attempt in task.history if order is None or order.kind not in _POISONS else ():
            if attempt.outcome != "succeeded" and not _is_explained(attempt, order):
                error = f": {attempt.error.type}: {attempt.error.message}" if attempt.error else ""
                text = f"claim {attempt.delivery} ended with {attempt.outcome}{error}"
                yield Violation("R15 cause", text, task.task_id)


def claims_are_kept(evidence: Evidence) -> Iterator[Violation]:
    """R17: no neighbour of poison loses its claim while it runs, and no task loses one where no worker was cut off.

    A claim that a child has got while its event loop was blocked may expire before it could be told of.
    """
    for task in evidence.snapshot.tasks.values():
        order = evidence.order_of(task)
        if not (order and (order.kind == "neighbour" or (evidence.spares_claims and order.kind not in _POISONS))):
            continue
        ran = {run.delivery for run in evidence.runs_by_task.get(task.task_id, [])}
        for attempt in task.history:
            endangered = not evidence.spares_claims and attempt.delivery not in ran
            if attempt.outcome in _LOST and attempt.worker_id != STALE_SETTLER and not endangered:
                text = f"{order.kind}: claim {attempt.delivery} of {attempt.worker_id} ended with {attempt.outcome}"
                yield Violation("R17 claims", text, task.task_id)


def slots_are_kept(evidence: Evidence) -> Iterator[Violation]:
    """R18: after poison, as many tasks as there are slots can run at the same time."""
    for found, expected in evidence.journal.slots:
        if found < expected:
            yield Violation("R18 slots", f"after poison, {found} of {expected} slots run tasks")


def forks_can_enqueue(evidence: Evidence) -> Iterator[Violation]:
    """R19: every call of a producer that forked, and of its children, is answered."""
    for failure in evidence.journal.fork_failures:
        yield Violation("R19 forks", failure)


def pace_is_kept(evidence: Evidence) -> Iterator[Violation]:
    """R20: beside a snapshot that is held, work goes on at its pace."""
    for pace in evidence.journal.paces:
        if pace.share < _LEAST_PACE:
            yield Violation("R20 pace", f"beside a snapshot: {pace}")


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
    claims_are_kept,
    slots_are_kept,
    forks_can_enqueue,
    pace_is_kept,
)
