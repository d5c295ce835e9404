"""A checker that finds nothing proves nothing: each rule sees the fault that it is there for, and names it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from chaos.checker import Evidence, check
from chaos.journal import Journal, Order, Pace, Violation, around
from chaos.report import Report
from chaos.snapshot import Snapshot
from chaos.tasks import DELAY_MS
from chaos.trace import Run

from holdfast.core.task import Attempt, State, Task

FIRST, SECOND = "a" * 32, "b" * 32


def attempt(delivery: int, outcome: str, **more: Any) -> Attempt:
    start = 1_000_000 + DELAY_MS + 10_000 * delivery
    return Attempt(
        **{
            "delivery": delivery,
            "attempt": delivery,
            "worker_id": "host:1",
            "outcome": outcome,
            "started_at_ms": start,
            "ended_at_ms": start + 5_000,
            **more,
        }
    )


def task(task_id: str, number: int, kind: str, *history: Attempt) -> Task:
    return Task(
        task_id=task_id,
        type="work",
        queue="chaos-a",
        state=State.SUCCEEDED,
        priority=0,
        attempt=len(history),
        deliveries=len(history),
        created_at_ms=1_000_000,
        run_at_ms=1_000_000,
        request_id=f"r{number}",
        payload=msgspec.json.encode({"number": number, "kind": kind}),
        result=str(len(history)).encode(),
        history=history,
    )


def sound() -> Evidence:
    """A delayed task that ran at once, and a plain one whose first worker was lost."""
    journal = Journal(seed=1)
    journal.orders = {
        "r1": Order("r1", 1, "chaos-a", "delayed", FIRST, 1_000.0),
        "r2": Order("r2", 2, "chaos-a", "plain", SECOND, 1_000.0),
    }
    journal.acknowledged = [1_000.0, 1_000.0]
    journal.note("nemesis", "kill_master begins")
    snapshot = Snapshot(counts=Counter({("chaos-a", State.SUCCEEDED): 2}))
    snapshot.tasks = {
        FIRST: task(FIRST, 1, "delayed", attempt(1, "succeeded")),
        SECOND: task(SECOND, 2, "plain", attempt(1, "lease_expired"), attempt(2, "succeeded")),
    }
    snapshot.places.update({FIRST: ["done/succeeded"], SECOND: ["done/succeeded"]})
    snapshot.tokens.update({FIRST: {1: "1.1.x"}, SECOND: {1: "1.1.y", 2: "1.2.z"}})
    runs = [Run(1_000.0, FIRST, "1.1.x", 1, 9, 1), Run(1_001.0, SECOND, "1.2.z", 2, 9, 2)]
    return Evidence(journal, runs, snapshot)


def change(evidence: Evidence, task_id: str, **fields: Any) -> None:
    known = evidence.snapshot.tasks[task_id]
    evidence.snapshot.tasks[task_id] = msgspec.structs.replace(known, **fields)


def is_gone(evidence: Evidence) -> None:
    del evidence.snapshot.tasks[FIRST]
    del evidence.snapshot.places[FIRST]
    evidence.snapshot.counts["chaos-a", State.SUCCEEDED] = 1
    del evidence.runs[0]


def is_dead(evidence: Evidence) -> None:
    change(evidence, FIRST, state=State.DEAD_LETTERED)


def was_never_sent(evidence: Evidence) -> None:
    del evidence.journal.orders["r1"]


def has_other_arguments(evidence: Evidence) -> None:
    change(evidence, FIRST, payload=b'{"number":7,"kind":"delayed"}')


def ran_with_another_number(evidence: Evidence) -> None:
    evidence.runs.append(Run(1_002.0, "c" * 32, "1.1.x", 1, 9, 3))


def has_a_twin(evidence: Evidence) -> None:
    evidence.snapshot.tasks["c" * 32] = msgspec.structs.replace(evidence.snapshot.tasks[FIRST], task_id="c" * 32)


def lacks_a_claim(evidence: Evidence) -> None:
    change(evidence, SECOND, history=(attempt(2, "succeeded"),))


def claims_overlap(evidence: Evidence) -> None:
    change(evidence, SECOND, history=(attempt(1, "lease_expired", ended_at_ms=2_000_000), attempt(2, "succeeded")))


def succeeded_twice(evidence: Evidence) -> None:
    change(evidence, SECOND, history=(attempt(1, "succeeded"), attempt(2, "succeeded")))


def was_settled_late(evidence: Evidence) -> None:
    change(evidence, FIRST, history=(attempt(1, "succeeded", worker_id="stale-settler"),))


def lost_an_attempt(evidence: Evidence) -> None:
    change(evidence, SECOND, history=(attempt(1, "lease_expired"), attempt(2, "succeeded", attempt=1)))


def began_too_early(evidence: Evidence) -> None:
    change(evidence, FIRST, history=(attempt(1, "succeeded", started_at_ms=1_000_000 + DELAY_MS - 1),))


def is_in_two_sets(evidence: Evidence) -> None:
    evidence.snapshot.places[FIRST].append("ready")


def is_in_a_set_without_a_record(evidence: Evidence) -> None:
    evidence.snapshot.places["d" * 32].append("claims")


def is_counted_wrong(evidence: Evidence) -> None:
    evidence.snapshot.counts["chaos-a", State.READY] += 1


def has_the_result_of_another(evidence: Evidence) -> None:
    change(evidence, SECOND, result=b"1")


def ran_without_a_claim(evidence: Evidence) -> None:
    evidence.runs[0] = Run(1_000.0, FIRST, "1.1.w", 1, 9, 1)


def ran_twice_under_one_claim(evidence: Evidence) -> None:
    evidence.runs.append(evidence.runs[0])


def never_ran(evidence: Evidence) -> None:
    del evidence.runs[0]


def ended_without_a_cause(evidence: Evidence) -> None:
    change(evidence, SECOND, history=(attempt(1, "failed"), attempt(2, "succeeded")))


def a_late_ack_was_accepted(evidence: Evidence) -> None:
    evidence.journal.violated("R5 fencing", "late ack was accepted", FIRST)


def is_a_neighbour_that_lost_its_claim(evidence: Evidence) -> None:
    evidence.journal.orders["r2"].kind = "neighbour"
    evidence.runs.append(Run(1_000.5, SECOND, "1.1.y", 1, 9, 2))


def lost_a_claim_that_nothing_endangered(evidence: Evidence) -> None:
    evidence.spares_claims = True


def is_poison_that_ended_otherwise(evidence: Evidence) -> None:
    evidence.journal.orders["r1"].kind = "raises_a_long_chain"
    evidence.journal.orders["r1"].ends = frozenset({State.DEAD_LETTERED})


def was_to_wait_for_half_an_hour(evidence: Evidence) -> None:
    evidence.journal.orders["r1"].kind = "later"


def ran_too_early_by_real_time(evidence: Evidence) -> None:
    evidence.journal.steps = [500.0]
    evidence.journal.orders["r1"].sent_at = 1_000.0 - DELAY_MS / 1_000 + 0.1


def lost_a_slot(evidence: Evidence) -> None:
    evidence.journal.slots = [(100, 100), (99, 100)]


def could_not_enqueue_after_a_fork(evidence: Evidence) -> None:
    evidence.journal.fork_failures = ["a forked producer hung for 30 s"]


def became_slow(evidence: Evidence) -> None:
    evidence.journal.paces = [Pace(1_000, 700, 4_000, 2_000), Pace(1_000, 690, 4_000, 2_790)]


BROKEN: list[tuple[str, Callable[[Evidence], None]]] = [
    ("R1 loss", is_gone),
    ("R1 loss", is_dead),
    ("R2 phantom", was_never_sent),
    ("R2 phantom", has_other_arguments),
    ("R2 phantom", ran_with_another_number),
    ("R3 dedup", has_a_twin),
    ("R4 claims", lacks_a_claim),
    ("R4 claims", claims_overlap),
    ("R5 fencing", succeeded_twice),
    ("R5 fencing", was_settled_late),
    ("R5 fencing", a_late_ack_was_accepted),
    ("R6 attempts", lost_an_attempt),
    ("R7 due", began_too_early),
    ("R8 counts", is_in_two_sets),
    ("R8 counts", is_in_a_set_without_a_record),
    ("R8 counts", is_counted_wrong),
    ("R14 result", has_the_result_of_another),
    ("R15 unclaimed", ran_without_a_claim),
    ("R15 unclaimed", ran_twice_under_one_claim),
    ("R15 unclaimed", never_ran),
    ("R15 cause", ended_without_a_cause),
    ("R17 claims", is_a_neighbour_that_lost_its_claim),
    ("R17 claims", lost_a_claim_that_nothing_endangered),
    ("R17 poison", is_poison_that_ended_otherwise),
    ("R18 slots", lost_a_slot),
    ("R19 forks", could_not_enqueue_after_a_fork),
    ("R20 pace", became_slow),
    ("R7 due", was_to_wait_for_half_an_hour),
    ("R7 due", ran_too_early_by_real_time),
]


def report_on(evidence: Evidence) -> Report:
    return Report("cluster", 1, 1.0, evidence, check(evidence))


def test_sound_evidence_is_sound() -> None:
    report = report_on(sound())
    report.check()
    assert "no violation" in str(report)


@pytest.mark.parametrize(("rule", "breaks"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_each_rule_sees_its_fault(rule: str, breaks: Callable[[Evidence], None]) -> None:
    evidence = sound()
    breaks(evidence)
    report = report_on(evidence)
    assert rule in {violation.rule for violation in report.violations}
    with pytest.raises(AssertionError, match=r"make chaos SEED=1 COUNT=\d+ DEPLOYMENT=cluster"):
        report.check()


def test_a_task_may_be_claimed_earlier_by_a_clock_that_was_set_back() -> None:
    evidence = sound()
    claims_overlap(evidence)
    evidence.journal.steps = [999.0, 1_000.5]
    evidence.journal.orders["r1"].sent_at = 998.0
    assert check(evidence) == []


def test_a_violation_shows_its_task_and_what_was_near() -> None:
    journal = sound().journal
    for number in range(100):
        journal.note("nemesis", f"event {number}")
        journal.note("producer", "acknowledged", FIRST if number % 25 == 0 else SECOND)
    shown = around(journal.events, Violation("R1 loss", "is gone", FIRST))
    assert len(shown) == 20
    assert sum(event.task_id == FIRST for event in shown) == 4
    assert not any(event.task_id == SECOND for event in shown)
