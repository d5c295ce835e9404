"""`holdfast queues`."""

from __future__ import annotations

import click

from holdfast.admin import actions, inspect
from holdfast.admin import partitions as spreading
from holdfast.admin.text import about_ms
from holdfast.cli import options, output
from holdfast.cli.options import store_options, with_store
from holdfast.core.durations import format_ms
from holdfast.core.priority import AGED_STEP_MS, ORDERS, Order, order_text
from holdfast.core.task import State
from holdfast.stores.contract import Store

#: Always in the table; the others only when a queue has tasks in them, since a terminal is narrow.
_COMMON = frozenset({State.READY, State.CLAIMED, State.SCHEDULED, State.SUCCEEDED})


@click.group(no_args_is_help=False)
def queues() -> None:
    """List, pause, resume, order and spread queues."""


@queues.command("ls")
@store_options
def list_queues(url: str, as_json: bool) -> None:
    """List queues with their depth in every state."""
    rows = with_store(url, inspect.queue_table, must_exist=True)
    if as_json:
        output.document(rows)
        return
    shown = [state for state in State if not output.at_terminal() or _is_shown(state, rows)]
    ordered = not output.at_terminal() or any(row.step_ms != AGED_STEP_MS for row in rows)
    columns = ["queue", "status", *["order"] * ordered, "#workers", *(f"#{state}" for state in shown), "#oldest ready"]
    cells = [
        [
            row.queue,
            "paused" if row.paused else "",
            *[order_text(row.step_ms)] * ordered,
            row.workers,
            *(row.states.get(state, 0) for state in shown),
            "" if row.oldest_ready_ms is None else about_ms(row.oldest_ready_ms),
        ]
        for row in rows
    ]
    output.table(columns, cells, "No queue has a task yet.")


def _is_shown(state: State, rows: list[inspect.QueueRow]) -> bool:
    return state in _COMMON or any(row.states.get(state) for row in rows)


@queues.command("pause")
@click.argument("names", nargs=-1, required=True, type=options.queue, metavar="QUEUE...")
@store_options
def pause(names: tuple[str, ...], url: str, as_json: bool) -> None:
    """Stop handing out tasks of these queues; what is running goes on."""
    _switch(names, url, as_json, paused=True)


@queues.command("resume")
@click.argument("names", nargs=-1, required=True, type=options.queue, metavar="QUEUE...")
@store_options
def resume(names: tuple[str, ...], url: str, as_json: bool) -> None:
    """Hand out tasks of these queues again."""
    _switch(names, url, as_json, paused=False)


@queues.command("order")
@click.argument("name", type=options.queue, metavar="QUEUE")
@click.argument("order", type=click.Choice(ORDERS))
@click.option("--step", metavar="TIME", help=f"For aged: what a level is worth. [default: {format_ms(AGED_STEP_MS)}]")
@store_options
def set_order(name: str, order: Order, step: str | None, url: str, as_json: bool) -> None:
    """Say what priority is worth in this queue, also for the tasks that wait there.

    strict: always the highest priority first, however long others wait. aged: each level of priority is worth a step of
    waiting, so that nothing starves.
    """
    step_ms = with_store(url, lambda store: actions.set_order(store, name, order, step))
    if as_json:
        output.document({"queue": name, "order": order, "step_ms": step_ms})
    else:
        output.line(f"queue {name} is {order_text(step_ms)}")


@queues.command("spread")
@click.argument("name", type=options.queue, metavar="QUEUE")
@click.argument("partitions", type=int, metavar="N")
@store_options
def spread(name: str, partitions: int, url: str, as_json: bool) -> None:
    """Let new tasks of this queue go to N partitions; those that are elsewhere are still worked off.

    Tasks with a request_id stay in the queue's first partition, where their repeats find them.
    """
    current = with_store(url, lambda store: spreading.spread(store, name, partitions))
    if as_json:
        output.document({"queue": name, "partitions": current.partitions(name), "map_version": current.version})
        return
    listed = ", ".join(map(str, current.partitions(name)))
    output.line(f"new tasks of queue {name} go to partition {listed} (map version {current.version})")


def _switch(names: tuple[str, ...], url: str, as_json: bool, *, paused: bool) -> None:
    async def switch(store: Store) -> None:
        for name in names:
            await (actions.pause if paused else actions.resume)(store, name)

    with_store(url, switch)
    if as_json:
        output.document([{"queue": name, "paused": paused} for name in names])
        return
    for name in names:
        output.line(f"queue {name} is {'paused' if paused else 'running'}")
