"""How many requests were made, what became of them, and what is wrong with that."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

from schemathesis import Case, Response
from schemathesis.engine.events import ScenarioFinished

#: What schemathesis says when it has drawn a good value where it wanted a bad one.
_NO_FAULT: Final = "Invalid component: positive test case"


class Finding(NamedTuple):
    """An answer that is not what the document promises."""

    operation: str
    check: str
    message: str
    curl: str

    def __str__(self) -> str:
        return f"{self.operation}: {self.check}: {self.message}\n  {self.curl}"


class Tally:
    """Counts requests by status and operation."""

    def __init__(self) -> None:
        self.by_status: Counter[int] = Counter()
        self.by_operation: Counter[str] = Counter()
        #: Those with a status of 200 or 201.
        self.succeeded: Counter[str] = Counter()
        self.findings: list[Finding] = []
        self.seconds = 0.0

    @property
    def requests(self) -> int:
        """All of them."""
        return self.by_status.total()

    def count(self, case: Case[Any], response: Response) -> None:
        """Adds an answer."""
        self.by_status[response.status_code] += 1
        self.by_operation[case.operation.label] += 1
        self.succeeded[case.operation.label] += response.status_code < 300

    def read(self, scenario: ScenarioFinished) -> None:
        """Adds what the checks of a scenario have found."""
        for case_id, nodes in scenario.recorder.checks.items():
            for name, failed in ((node.name, node.failure_info) for node in nodes):
                if failed is None or _NO_FAULT in failed.failure.message:
                    continue
                answer = scenario.recorder.interactions[case_id].response
                said = f"{answer.status_code} {answer.content[:500]!r}" if answer is not None else "no answer"
                text = f"{failed.failure.title}: {failed.failure.message}: {said}"
                self.findings.append(Finding(scenario.label or "", name, text, failed.code_sample))

    def table(self) -> str:
        """The numbers, by class of status, by status and by operation."""
        classes = Counter({f"{digit}xx": 0 for digit in (2, 4, 5)})
        for status, count in self.by_status.items():
            classes[f"{status // 100}xx"] += count
        lines = [f"{self.requests:,} requests in {self.seconds:.0f} s, {len(self.findings)} findings"]
        lines.append("  " + ", ".join(f"{count:,} with {name}" for name, count in classes.items()))
        lines.append("  " + ", ".join(f"{count:,} x {status}" for status, count in sorted(self.by_status.items())))
        lines.append("      all     2xx  operation")
        for label, count in sorted(self.by_operation.items()):
            lines.append(f"  {count:>7,} {self.succeeded[label]:>7,}  {label}")
        return "\n".join(lines)
