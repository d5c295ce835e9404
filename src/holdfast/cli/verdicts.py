"""What is printed after tasks were changed one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from holdfast.admin.actions import refusal
from holdfast.cli import output
from holdfast.cli.failures import one_line
from holdfast.core.lifecycle import Verdict


def report(
    task_ids: Sequence[str],
    verdicts: Sequence[Verdict],
    verb: str,
    as_json: bool,
    say: Callable[[Verdict], str],
) -> int:
    """Prints one line a task, refusals on stderr; the exit code is 1 if any was refused."""
    if as_json:
        pairs = zip(task_ids, verdicts, strict=True)
        output.document([{"task_id": task_id, **_view(verdict)} for task_id, verdict in pairs])
    for task_id, verdict in zip(task_ids, verdicts, strict=True):
        error = refusal(task_id, verdict, verb)
        if error is not None:
            click.echo(f"holdfast: {one_line(str(error))}", err=True)
        elif not as_json:
            output.line(f"{task_id} {say(verdict)}")
    return 0 if all(verdict.applied for verdict in verdicts) else 1


def _view(verdict: Verdict) -> dict[str, object]:
    return {"applied": verdict.applied, "repeated": verdict.repeated, "state": verdict.state, "reason": verdict.reason}
