"""What a run says at its end: figures that add up, and for each broken rule an example with what happened around it."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from chaos.checker import Evidence
from chaos.journal import Event, Violation, around, first_of_each_rule
from holdfast.core.task import State


@dataclass
class Report:
    """The verdict on one run."""

    deployment: str
    seed: int
    seconds: float
    evidence: Evidence
    violations: list[Violation]
    complaints: list[str] = field(default_factory=list)

    @property
    def acknowledged(self) -> int:
        """How many orders were acknowledged."""
        return len(self.evidence.journal.acknowledged)

    @property
    def per_second(self) -> float:
        """Acknowledged orders a second, outages included."""
        return self.acknowledged / self.seconds

    def check(self) -> None:
        """Raises with everything that there is to say, if a promise was broken."""
        if self.violations:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        return "\n".join([*self._summary(), *self._explanations()])

    def _summary(self) -> list[str]:
        journal, tasks = self.evidence.journal, self.evidence.snapshot.tasks.values()
        states = Counter(task.state for task in tasks)
        claims = Counter(attempt.outcome for task in tasks for attempt in task.history)
        unknown = sum(order.task_id is None for order in journal.orders.values())
        recorded = len(tasks) - self.acknowledged
        gaps = self.outages()
        return [
            f"{self.deployment}, seed {self.seed}: {len(journal.faults)} faults in {self.seconds:.0f} s, "
            f"{'no violation' if not self.violations else f'{len(self.violations)} VIOLATIONS'}",
            f"  faults        {_listed(Counter(name for _, name in journal.faults))}",
            f"  orders        {len(journal.orders):,} = {self.acknowledged:,} acknowledged "
            f"({self.per_second:,.0f}/s) + {unknown:,} unknown, of which {recorded:,} were recorded; "
            f"{journal.repeats:,} repeated, {journal.errors:,} calls failed",
            f"  tasks         {len(tasks):,} = {_listed(states)}",
            f"  claims        {sum(claims.values()):,} = {_listed(claims)}",
            f"  runs          {len(self.evidence.runs):,} by {len({run.pid for run in self.evidence.runs})} processes",
            f"  stale acks    {journal.stale_tried:,} tried, {journal.stale_refused:,} refused",
            f"  outages       {_spread(gaps)} without an acknowledgement, a fault",
            *(f"  {name:<13} {text}" for name, text in journal.figures),
        ]

    def outages(self) -> list[float]:
        """For each fault, the longest time between two acknowledgements from it to the next."""
        times = sorted(self.evidence.journal.acknowledged)
        begins = [at for at, _ in self.evidence.journal.faults]
        gaps = []
        for begin, end in pairwise([*begins, float("inf")]):
            window = times[max(0, bisect_right(times, begin) - 1) : bisect_right(times, end)]
            gaps.append(max((after - before for before, after in pairwise(window)), default=0.0))
        return gaps

    def _explanations(self) -> list[str]:
        lines = [f"  complaint     {line}" for line in self.complaints[:5]]
        events = self._events() if self.violations else []
        for violation in first_of_each_rule(self.violations):
            count = sum(other.rule == violation.rule for other in self.violations)
            lines += [f"{violation} [{count} of this rule]", *(f"    {event}" for event in around(events, violation))]
        if self.violations:
            lines.append(f"again with: {self._command()}")
        return lines

    def _command(self) -> str:
        names = [name for _, name in self.evidence.journal.faults]
        only = f" CHAOS_OPTIONS='--fault {names[0]}'" if len(set(names)) == 1 else ""
        return f"make chaos SEED={self.seed} COUNT={len(names)} DEPLOYMENT={self.deployment}{only}"

    def _events(self) -> list[Event]:
        claims = [
            Event(moment_ms / 1000, "store", f"claim {each.delivery} of {each.worker_id} {what}", task.task_id)
            for task in self.evidence.snapshot.tasks.values()
            for each in task.history
            for moment_ms, what in ((each.started_at_ms, "began"), (each.ended_at_ms, f"ended: {each.outcome}"))
        ]
        return [*self.evidence.journal.events, *claims, *(run.event() for run in self.evidence.runs)]


def _listed(counts: Counter[str] | Counter[State]) -> str:
    return " + ".join(f"{count:,} {name}" for name, count in sorted(counts.items())) or "0"


def _spread(seconds: list[float]) -> str:
    if not seconds:
        return "0 s"
    return f"median {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s"
