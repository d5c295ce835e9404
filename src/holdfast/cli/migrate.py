"""`holdfast migrate`."""

from __future__ import annotations

import click

from holdfast.cli import output
from holdfast.cli.options import store_options, with_store
from holdfast.stores.contract import Finding, Store


@click.command()
@click.option("--status", is_flag=True, help="Only say what the schema is.")
@click.option("--dry-run", is_flag=True, help="Only name the steps that are missing.")
@store_options
def migrate(status: bool, dry_run: bool, url: str, as_json: bool) -> None:
    """Bring a store's schema up to this version.

    Workers and producers do this too when they first use a store. Workers of the version before go on with a
    PostgreSQL store that was brought up to date, or say that they must be replaced.
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
