"""`holdfast partitions`."""

from __future__ import annotations

import click

from holdfast.admin.partitions import PartitionRow, partition_table
from holdfast.cli import output
from holdfast.cli.options import store_options, with_store


@click.group(no_args_is_help=False)
def partitions() -> None:
    """List partitions."""


@partitions.command("ls")
@store_options
def list_partitions(url: str, as_json: bool) -> None:
    """List partitions: the server that keeps each, the worker that looks after it, and how many tasks it has."""
    rows = with_store(url, partition_table, must_exist=True)
    if as_json:
        output.document(rows)
        return
    output.table(["#partition", "server", "owner", "#epoch", "#depth"], [_cells(row) for row in rows], "")


def _cells(row: PartitionRow) -> list[object]:
    owner = f"does not answer: {row.error}" if row.error else row.owner or "nobody"
    return [row.partition, row.server, owner, row.epoch, row.depth]
