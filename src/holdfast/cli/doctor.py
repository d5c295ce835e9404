"""`holdfast doctor`."""

from __future__ import annotations

import click

from holdfast.admin.doctor import MAX_DEAD_LETTERS, examine
from holdfast.cli import output
from holdfast.cli.options import store_options, with_store

_MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "problem": "PROBLEM"}


@click.command()
@click.option(
    "--max-dead-letters",
    type=click.IntRange(min=0),
    default=MAX_DEAD_LETTERS,
    show_default=True,
    help="More dead letters than this are a problem.",
)
@store_options
@click.pass_context
def doctor(ctx: click.Context, max_dead_letters: int, url: str, as_json: bool) -> None:
    """Check the store, the workers and the tasks; exit 1 on a problem."""
    findings = with_store(url, lambda store: examine(store, max_dead_letters=max_dead_letters), must_exist=True)
    healthy = not any(finding.level == "problem" for finding in findings)
    if as_json:
        output.document({"healthy": healthy, "findings": findings})
    else:
        rows = [[_MARKS[finding.level], finding.check, finding.text] for finding in findings]
        output.table(["", "check", "finding"] if output.at_terminal() else ["level", "check", "finding"], rows, "")
    ctx.exit(0 if healthy else 1)
