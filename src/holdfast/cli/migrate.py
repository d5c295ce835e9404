"""`holdfast migrate`."""

from __future__ import annotations

import click

from holdfast.cli import output
from holdfast.cli.options import store_options, with_store
from holdfast.stores.contract import Finding, Store


@click.command()
@click.option("--status", is_flag=True, help="Only say what the schema is.")
@store_options
def migrate(status: bool, url: str, as_json: bool) -> None:
    """Bring a store's schema up to this version.

    SQLite stores are also brought up to date whenever they are opened.
    """
    if status:
        _status(url, as_json)
        return
    steps = with_store(url, lambda store: store.migrate())
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
