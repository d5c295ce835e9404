"""holdfast migrate, doctor, partitions: the store as a whole."""

from __future__ import annotations

from collections import Counter

import click

from holdfast.admin.doctor import MAX_DEAD_LETTERS, examine
from holdfast.admin.inspect import several
from holdfast.admin.workers import PartitionRow, partition_table
from holdfast.cli import output
from holdfast.cli.listing import watched
from holdfast.cli.options import store_options, with_store
from holdfast.cli.tables import Column
from holdfast.stores.contract import Finding, Store


@click.command()
@click.option("--status", is_flag=True, help="Only print the version of the schema.")
@click.option("--dry-run", is_flag=True, help="Only print the steps that would be taken.")
@store_options
def migrate(status: bool, dry_run: bool, url: str, as_json: bool) -> None:
    """Create or upgrade the schema of a store.

    Workers and producers do this too when they first use a store. Workers of the previous version
    continue with an upgraded PostgreSQL store, or exit and say that they must be replaced.
    """
    if status:
        _status(url, as_json)
        return
    steps = with_store(url, lambda store: store.migrate(dry_run=dry_run))
    if as_json:
        output.document({"steps": steps})
    elif steps:
        for step in steps:
            output.line(step)
    else:
        output.line("up to date")


def _status(url: str, as_json: bool) -> None:
    async def ask(store: Store) -> list[Finding]:
        return [finding for finding in await store.probe() if "schema" in finding.check]

    findings = with_store(url, ask, must_exist=True)
    if as_json:
        output.document(findings)
        return
    for finding in findings:
        output.line(finding.text)


# -- doctor --------------------------------------------------------------------------------------------------


_MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "problem": "PROBLEM"}


@click.command()
@click.option(
    "--max-dead-letters",
    type=click.IntRange(min=0),
    metavar="N",
    default=MAX_DEAD_LETTERS,
    show_default=True,
    help="Report a problem above this many dead letters.",
)
@store_options
@click.pass_context
def doctor(ctx: click.Context, max_dead_letters: int, url: str, as_json: bool) -> None:
    """Check the store, the workers and the tasks; exit 1 on a problem."""

    async def ask(store: Store) -> tuple[str, list[Finding]]:
        return store.url, await examine(store, max_dead_letters=max_dead_letters)

    name, findings = with_store(url, ask, must_exist=True)
    healthy = not any(finding.level == "problem" for finding in findings)
    if as_json:
        output.document({"store": name, "healthy": healthy, "findings": findings})
    else:
        rows = [[_MARKS[finding.level], finding.check, finding.text] for finding in findings]
        summary = _summary(findings, name)
        if output.at_terminal():
            output.table(["", "check", Column("finding", kind="wrapped")], rows, "")
            output.chatter(summary)
        else:  # a file has it as a row
            output.table(["level", "check", "finding"], [*rows, ["", "summary", summary]], "")
    ctx.exit(0 if healthy else 1)


def _summary(findings: list[Finding], name: str) -> str:
    """`3 warnings, 1 problem, 2 notes in sqlite:////srv/holdfast.db`."""
    levels = Counter(finding.level for finding in findings)
    counted = [several(levels[level], level) for level in ("warning", "problem") if levels[level]]
    notes = f", {several(levels['note'], 'note')}" if levels["note"] else ""
    return f"{', '.join(counted) or 'no warnings, no problems'}{notes} in {name}"


# -- partitions ----------------------------------------------------------------------------------------------


_COLUMNS = (
    "#partition",
    Column("server", kind="long"),
    Column("owner", 1, "long"),
    Column("epoch", 2, "number"),
    "#depth",
)


@click.group(no_args_is_help=False)
def partitions() -> None:
    """List partitions."""


@partitions.command("ls")
@watched
@store_options
def list_partitions(url: str, as_json: bool) -> None:
    """List partitions: database, leader, and number of tasks of each."""
    rows = with_store(url, partition_table, must_exist=True)
    if as_json:
        output.document(rows)
        return
    output.table(_COLUMNS, [_cells(row) for row in rows], "")


def _cells(row: PartitionRow) -> list[object]:
    owner = f"does not answer: {row.error}" if row.error else row.owner or "-"
    return [row.partition, row.server, owner, row.epoch, row.depth]
