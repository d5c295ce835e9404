"""`holdfast queues`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from holdfast.admin import actions, inspect
from holdfast.admin import workers as spreading
from holdfast.admin.inspect import about_ms, several
from holdfast.cli import options, output
from holdfast.cli.bulk import can_ask
from holdfast.cli.listing import watched
from holdfast.cli.options import store_options, with_store
from holdfast.cli.tables import Column
from holdfast.core.durations import format_ms
from holdfast.core.names import suggestion
from holdfast.core.priority import AGED_STEP_MS, ORDERS, Order, order_text, step_of
from holdfast.core.task import State
from holdfast.errors import BadOption
from holdfast.stores.contract import Query, Store
from holdfast.stores.open import split_urls

#: Always in the table; the others only when a queue has tasks in them, since a terminal is narrow.
_COMMON = frozenset({State.READY, State.CLAIMED, State.SCHEDULED, State.SUCCEEDED})
#: States whose column is left out in a narrow terminal; the highest first.
_RANKS = {State.BLOCKED: 9, State.CANCELLED: 8, State.FAILED: 7, State.SUCCEEDED: 6, State.RETRY_PENDING: 5}


@click.group(no_args_is_help=False)
def queues() -> None:
    """List, pause, resume, order, spread and purge queues."""


@queues.command("ls")
@watched
@store_options
def list_queues(url: str, as_json: bool) -> None:
    """List queues with the number of tasks in each state."""
    rows = with_store(url, inspect.queue_table, must_exist=True, in_part=True)
    if as_json:
        output.document(rows)
        return
    shown = [state for state in State if not output.at_terminal() or _is_shown(state, rows)]
    ordered = not output.at_terminal() or any(row.step_ms != AGED_STEP_MS for row in rows)
    columns: list[str | Column] = [
        "queue",
        Column("status", 1),
        *[Column("order", 10)] * ordered,
        Column("workers", 2, "number"),
        *(Column(state, _RANKS.get(state, 0), "number") for state in shown),
        Column("oldest ready", 3, "number"),
    ]
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


_CREATE = click.option("--create", is_flag=True, help="Also for a queue that has no task, setting or worker yet.")


@queues.command("pause")
@click.argument("names", nargs=-1, required=True, type=options.queue, metavar="QUEUE...")
@_CREATE
@store_options
def pause(names: tuple[str, ...], create: bool, url: str, as_json: bool) -> None:
    """Pause queues; running tasks continue."""
    _switch(names, url, as_json, create, paused=True)


@queues.command("resume")
@click.argument("names", nargs=-1, required=True, type=options.queue, metavar="QUEUE...")
@_CREATE
@store_options
def resume(names: tuple[str, ...], create: bool, url: str, as_json: bool) -> None:
    """Resume paused queues."""
    _switch(names, url, as_json, create, paused=False)


@queues.command("order", short_help="Set how priorities work in a queue.")
@click.argument("name", type=options.queue, metavar="QUEUE")
@click.argument("order", type=click.Choice(ORDERS))
@click.option(
    "--step",
    metavar="TIME",
    help=f"With aged: waiting time that one priority level is worth. [default: {format_ms(AGED_STEP_MS)}]",
)
@_CREATE
@store_options
def set_order(name: str, order: Order, step: str | None, create: bool, url: str, as_json: bool) -> None:
    """Set how priorities work in a queue, also for tasks that already wait there.

    strict: always the highest priority first, however long others wait. aged: each priority level counts as one step of
    waiting time, so that no task starves.
    """
    step_of(order, step)  # refuses a wrong step before the store is opened

    async def change(store: Store) -> int:
        await _check_known(store, [name], create)
        return await actions.set_order(store, name, order, step)

    step_ms = with_store(url, change, must_exist=not create, in_part=True)
    if as_json:
        output.document({"queue": name, "order": order, "step_ms": step_ms})
    else:
        output.line(f"queue {name} is {order_text(step_ms)}")


@queues.command("spread", short_help="Spread new tasks of a queue over N partitions.")
@click.argument("name", type=options.queue, metavar="QUEUE")
@click.argument("partitions", type=int, metavar="N")
@store_options
def spread(name: str, partitions: int, url: str, as_json: bool) -> None:
    """Spread new tasks of a queue over N partitions; tasks in other partitions still run.

    Tasks with a request_id stay in the queue's first partition, where repeated requests find them.
    """
    # Several partitions are often spread over before the first task; one is refused in any case.
    is_one = len(split_urls(url)) == 1
    current = with_store(url, lambda store: spreading.spread(store, name, partitions), must_exist=is_one)
    if as_json:
        output.document({"queue": name, "partitions": current.partitions(name), "map_version": current.version})
        return
    listed = ", ".join(map(str, current.partitions(name)))
    output.line(f"new tasks of queue {name} go to partition {listed} (map version {current.version})")


@queues.command("purge", short_help="Cancel all waiting tasks of a queue.")
@click.argument("name", type=options.queue, metavar="QUEUE")
@click.option("--type", "task_type", type=options.task_type, help="Only tasks of this type.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=options.StateChoice([state for state in State if state in actions.PURGED]),
    metavar="STATE",
    help=f"Only tasks in this state: {', '.join(state for state in State if state in actions.PURGED)}; repeatable.",
)
@click.option("--reason", default="purged from the command line", show_default=True, help="Reason to store.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    default=100_000,
    show_default=True,
    help="Cancel at most this many tasks.",
)
@click.option("--dry-run", is_flag=True, help="Only print how many tasks would be cancelled.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@store_options
def purge(name: str, yes: bool, dry_run: bool, url: str, as_json: bool, **given: Any) -> None:
    """Cancel all waiting tasks of a queue; running tasks are not touched.

    Tasks are cancelled in batches of 1,000, and kept as cancelled tasks until their time to live ends. Pause the queue
    first if producers still enqueue.
    """
    if not yes and not dry_run and not can_ask():
        raise click.UsageError("purge needs --yes without a terminal, or --dry-run")
    states = frozenset(State(state) for state in given["states"]) or actions.PURGED
    query, limit = Query(states=states, queue=name, type=given["task_type"]), given["limit"]

    async def count(store: Store) -> int:
        await _check_known(store, [name], create=False)
        return await actions.count_matching(store, query, limit)

    matching = with_store(url, count, must_exist=True, in_part=True)
    if dry_run:
        _purged(name, "would cancel", {"queue": name, "matched": matching}, matching, as_json)
        return
    question = f"Cancel {several(matching, 'waiting task')} of queue {name}?"
    if matching and not yes and not click.confirm(question, err=True):
        raise click.ClickException("nothing was changed")
    with output.progress_bar("cancelled", matching) as progress:
        result = with_store(
            url,
            lambda store: actions.purge(store, query, given["reason"], limit=limit, progress=progress),
            in_part=True,
        )
    facts: dict[str, object] = {"queue": name, "matched": result.matched, "cancelled": result.changed}
    _purged(name, "cancelled", facts, result.changed, as_json)
    if result.matched >= limit:
        output.chatter(f"There may be more: --limit is {limit:,}.")


def _purged(name: str, done: str, facts: dict[str, object], number: int, as_json: bool) -> None:
    if as_json:
        output.document(facts)
    else:
        output.line(f"{done} {several(number, 'waiting task')} of queue {name}")


async def _check_known(store: Store, names: Sequence[str], create: bool) -> None:
    """Refuses queues that no task, setting or worker has: most of them are typing errors."""
    if create:
        return
    known = ["default", *(row.queue for row in await inspect.queue_table(store))]
    for name in names:
        if name not in known:
            hint = f"{suggestion(name, known)} ".lstrip()
            raise BadOption(f"no queue {name} in {store.url}: {hint}see holdfast queues ls")


def _switch(names: tuple[str, ...], url: str, as_json: bool, create: bool, *, paused: bool) -> None:
    async def switch(store: Store) -> None:
        await _check_known(store, names, create)
        for name in names:
            await (actions.pause if paused else actions.resume)(store, name)

    with_store(url, switch, must_exist=not create, in_part=True)
    if as_json:
        output.document([{"queue": name, "paused": paused} for name in names])
        return
    for name in names:
        output.line(f"queue {name} is {'paused' if paused else 'running'}")
