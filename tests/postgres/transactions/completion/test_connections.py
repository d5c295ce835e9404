"""The connections of blocks, and blocks together with other tools."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from holdfast import Holdfast, current
from holdfast.core.task import State
from tests.postgres.transactions.completion.desk import WRITE, desk, succeeded, writes, writes_in_thread
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.support import eventually


def test_what_one_task_sets_is_not_for_the_next(postgres_server: PostgresServer, database: str) -> None:
    seen: list[Any] = []

    async def sets() -> None:
        async with current().transaction() as conn:
            conn.row_factory = dict_row  # type: ignore[assignment]
            await conn.execute("SET search_path = pg_catalog")
            await conn.execute("SET statement_timeout = '77s'")
            await conn.execute("CREATE TEMP TABLE left_over (id int)")
            for _ in range(3):
                await conn.execute("SELECT %s::int", (1,), prepare=True)

    def looks() -> None:
        with current().transaction() as conn:
            conn.execute(WRITE, (current().task_id, "found by the search_path of the role"))
            row = conn.execute("SELECT current_setting('search_path'), to_regclass('left_over')").fetchone()
            (pid,) = conn.execute("SELECT %s::int + pg_backend_pid() - 1", (1,), prepare=True).fetchone() or (0,)
            seen.append((row, pid))

    async def scenario() -> None:
        async with desk(postgres_server.url(database)) as it:
            for function in (looks, sets, looks):
                assert succeeded(*await it.done(function))

    asyncio.run(scenario())
    (first, pid), (last, same_pid) = seen
    assert pid == same_pid, "another connection: nothing is shown"
    assert first == last == ('"$user", public', None)


def test_a_connection_that_was_kept_is_closed_after_the_block(database_url: str) -> None:
    async def scenario() -> None:
        kept: list[Any] = []

        async def keeps() -> None:
            async with current().transaction() as conn:
                kept.append(conn)

        def keeps_in_thread() -> None:
            with current().transaction() as conn:
                kept.append(conn)

        async with desk(database_url) as it:
            for function in (keeps, keeps_in_thread):
                assert succeeded(*await it.done(function))
            with pytest.raises(psycopg.OperationalError):
                await kept[0].execute(WRITE, ("x", "never"))
            with pytest.raises(psycopg.OperationalError):
                kept[1].execute(WRITE, ("x", "never"))
            assert it.notes() == []

    asyncio.run(scenario())


def test_more_blocks_than_connections_wait_and_the_store_does_not(database_url: str) -> None:
    async def scenario() -> None:
        full, go = asyncio.Semaphore(0), asyncio.Event()

        async def holds() -> None:
            async with current().transaction() as conn:
                await conn.execute(WRITE, (current().task_id, "kept"))
                full.release()
                await go.wait()

        async with desk(database_url, through=f"{database_url}?connections=2") as it:
            runs = [await it.run_of(holds) for _ in range(5)]
            tasks = [asyncio.create_task(it.perform(run)) for run in runs]
            for _ in range(2):
                await full.acquire()
            assert [await it.is_claimed(run) for run in runs] == [True] * 5
            go.set()
            assert await asyncio.gather(*tasks) == [None] * 5
            assert it.notes() == ["kept"] * 5

    asyncio.run(scenario())


def test_a_block_that_rests_longer_than_the_lease_lets_go_its_locks(database_url: str) -> None:
    """As a worker that stands still: those who take over must not wait for it."""
    freed = "SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"

    async def scenario() -> None:
        async with desk(database_url, lease_ms=1_000) as it:

            async def rests() -> None:
                async with current().transaction() as conn:
                    await conn.execute(WRITE, (current().task_id, "never"))
                    await asyncio.to_thread(eventually, lambda: not it.query(freed))

            task, change = await it.done(rests)
            assert task.state is State.CLAIMED
            assert change is not None
            assert change.error is not None
            assert "nothing was committed" in change.error.message
            assert it.notes() == []

    asyncio.run(scenario())


def test_behind_a_pooler_in_transaction_mode(postgres_server: PostgresServer, database: str) -> None:
    async def scenario(through: str) -> None:
        async with desk(postgres_server.url(database), through=through) as it:
            for function in (writes, writes_in_thread, writes):
                assert succeeded(*await it.done(function))
            assert it.notes() == ["coroutine", "coroutine", "thread"]

    with PgBouncer(postgres_server) as pooler:
        asyncio.run(scenario(pooler.url(database, listen="poll")))


# -- with others ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_a_task_that_is_enqueued_in_the_block_shares_its_commit(database_url: str, fails: bool) -> None:
    async def scenario(app: Holdfast) -> None:
        follow_up = app.task(name="follow_up")(_add)

        async def chains() -> None:
            async with current().transaction() as conn:
                await follow_up.using(transaction=conn).aenqueue(1, 2)
                if fails:
                    raise ValueError("no")

        def chains_in_thread() -> None:
            with current().transaction() as conn:
                follow_up.using(transaction=conn).enqueue(1, 2)
                if fails:
                    raise ValueError("no")

        async with desk(database_url) as it:
            for function in (chains, chains_in_thread):
                _, change = await it.done(function)
                assert (change is not None) == fails
            recorded = it.query(
                "SELECT count(*) FROM holdfast.ready r JOIN holdfast.lanes USING (lane) WHERE type = 'follow_up'"
            )
            assert recorded == [(0 if fails else 2,)]

    with Holdfast(database_url) as app:
        asyncio.run(scenario(app))


def _add(a: int, b: int) -> int:
    return a + b


def test_statements_of_sqlalchemy_core(database_url: str) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    dialect = pytest.importorskip("sqlalchemy.dialects.postgresql.psycopg").dialect()
    table = sqlalchemy.table("written", sqlalchemy.column("task_id"), sqlalchemy.column("note"))

    async def writes_by_core() -> None:
        async with current().transaction() as conn:
            compiled = table.insert().values(task_id=current().task_id, note="100 %").compile(dialect=dialect)
            await conn.execute(str(compiled).encode(), compiled.params)

    async def scenario() -> None:
        async with desk(database_url) as it:
            assert succeeded(*await it.done(writes_by_core))
            assert it.notes() == ["100 %"]

    asyncio.run(scenario())
