"""A task whose record cannot be read costs itself only: its neighbours are handed out, come back and are listed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from psycopg import sql

from holdfast.core import lifecycle
from holdfast.core.retry import DEFAULT_POLICY
from holdfast.core.task import State
from holdfast.stores.contract import Query
from holdfast.testing.kit.harness import StoreHarness
from holdfast.testing.kit.kit import Kit, ack
from tests.servers.postgres_shared import shared_durable_postgres
from tests.servers.shared import shared_durable_server
from tests.stores.harnesses import HARNESSES

#: Changes what is stored of one task: its id, what of it, the text that is there from now on.
Spoil = Callable[[str, str, str], None]
Scenario = Callable[[Callable[[Kit, Spoil], Awaitable[None]]], None]

#: Nested so deeply that the decoder gives up with another error than for bad JSON.
DEEP = '{"x":' + "[" * 2_000 + "]" * 2_000 + "}"
#: Text that is no JSON, and JSON that is no policy or no headers.
UNREADABLE = [
    ("policy", "garbage"),
    ("policy", "[]"),
    ("policy", '{"max_attempts": "many"}'),
    ("headers", "garbage"),
    ("headers", "[]"),
    ("headers", '{"a": 7}'),
    ("policy", DEEP),
    ("headers", DEEP),
]


def _spoil_sqlite(harness: Any, task_id: str, column: str, text: str) -> None:
    # By the store's own library: the locks of two libraries in one process undo each other.
    connection = apsw.Connection(str(harness._path))
    connection.execute(
        f"UPDATE envelopes SET {column} = ? WHERE seq = (SELECT seq FROM tasks WHERE task_id = ?)",
        (text, task_id),
    )
    connection.close()


def _spoil_redis(harness: Any, task_id: str, column: str, text: str) -> None:
    base = f"{{{harness._prefix}:0}}"
    with shared_durable_server("redis").client() as client:
        client.hset(f"{base}/t/{task_id}", {"policy": "o", "headers": "h"}[column], text)


def _spoil_postgres(harness: Any, task_id: str, column: str, text: str) -> None:
    table = sql.Identifier(harness._schema, "tasks")
    statement = sql.SQL("UPDATE {} SET {} = %s WHERE task_id = %s").format(table, sql.Identifier(column))
    with psycopg.connect(shared_durable_postgres().url(), autocommit=True) as connection:
        connection.execute(statement, (text, task_id))


SPOIL = {"sqlite-file": _spoil_sqlite, "redis": _spoil_redis, "postgres": _spoil_postgres}


@pytest.fixture(params=list(SPOIL))
def scenario(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[Callable[[Kit, Spoil], Awaitable[None]]], None]:
    """Runs a scenario on an empty store of each engine, with the means to spoil what it has stored."""
    engine: str = request.param

    async def run(play: Callable[[Kit, Spoil], Awaitable[None]]) -> None:
        harness: StoreHarness = HARNESSES[engine](tmp_path)
        kit = Kit(harness, await harness.open())
        await kit.begin()
        try:
            await play(kit, lambda task_id, column, text: SPOIL[engine](harness, task_id, column, text))
        finally:
            await kit.close()
            await harness.destroy()

    return lambda play: asyncio.run(run(play))


@pytest.mark.parametrize(("column", "text"), UNREADABLE)
def test_a_task_that_cannot_be_read_becomes_a_dead_letter(scenario: Scenario, column: str, text: str) -> None:
    async def play(kit: Kit, spoil: Spoil) -> None:
        good, bad, last = await kit.enqueue(3)
        spoil(bad, column, text)
        assert [task.task_id for task in (await kit.store.find(Query())).tasks] == [last, bad, good]
        request = kit.request(3)
        claims = (await kit.store.reserve(request)).tasks
        assert [claim.task_id for claim in claims] == [good, last]
        assert (await kit.store.reserve(request)).tasks == claims
        assert all(verdict.applied for verdict in await kit.store.apply([ack(claim) for claim in claims]))
        record = await kit.record(bad)
        assert record.state is State.DEAD_LETTERED
        [line] = record.history
        assert line.error is not None
        assert line.error.type == "UnreadableTask"
        assert line.error.message.startswith("its policy or headers cannot be read: ")
        page = await kit.store.find(Query(states=frozenset({State.DEAD_LETTERED})))
        assert [task.task_id for task in page.tasks] == [bad]
        assert await kit.reserve(3) == []

    scenario(play)


def test_the_lease_of_a_task_that_cannot_be_read_expires_like_any_other(scenario: Scenario) -> None:
    async def play(kit: Kit, spoil: Spoil) -> None:
        task_ids = await kit.enqueue(3)
        await kit.reserve(3)
        spoil(task_ids[1], "policy", "garbage")
        kit.clock.advance(40_000)
        lost = await kit.expired()
        assert {claim.task_id for claim in lost} == set(task_ids)
        assert next(claim.policy for claim in lost if claim.task_id == task_ids[1]) == DEFAULT_POLICY
        verdicts = await kit.requeue_expired()
        assert len(verdicts) == 3
        assert all(verdict.applied for verdict in verdicts)

    scenario(play)


def test_the_repeat_of_a_reserve_gets_the_neighbours_of_a_task_that_was_spoilt_meanwhile(scenario: Scenario) -> None:
    async def play(kit: Kit, spoil: Spoil) -> None:
        good, bad = await kit.enqueue(2)
        request = kit.request(2)
        assert len((await kit.store.reserve(request)).tasks) == 2
        spoil(bad, "headers", "garbage")
        assert [claim.task_id for claim in (await kit.store.reserve(request)).tasks] == [good]
        assert await kit.state(bad) is State.DEAD_LETTERED

    scenario(play)


def test_a_task_that_cannot_be_read_is_replayed_and_discarded_like_any_other(scenario: Scenario) -> None:
    async def play(kit: Kit, spoil: Spoil) -> None:
        task_ids = await kit.enqueue(2)
        for task_id in task_ids:
            spoil(task_id, "policy", "garbage")
        assert await kit.reserve(2) == []
        replayed, discarded = await kit.store.apply(
            [lifecycle.replay(task_ids[0]), lifecycle.discard(task_ids[1], "cannot be read")]
        )
        assert (replayed.applied, discarded.applied) == (True, True)
        assert await kit.state(task_ids[0]) is State.READY

    scenario(play)
