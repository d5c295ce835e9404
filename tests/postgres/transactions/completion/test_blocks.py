"""What a block commits, and what it does not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
import psycopg
import pytest

from holdfast import current
from holdfast.core import lifecycle
from holdfast.core.lifecycle import Event
from holdfast.core.task import State
from holdfast.errors import ClaimLost
from tests.postgres.transactions.completion.desk import WRITE, desk, succeeded, writes, writes_in_thread
from tests.servers.postgres import PostgresServer


@pytest.mark.parametrize(("function", "note"), [(writes, "coroutine"), (writes_in_thread, "thread")])
def test_writes_and_success_and_result_are_committed_together(database_url: str, function: Any, note: str) -> None:
    async def scenario() -> None:
        async with desk(database_url) as it:
            for _ in range(3):  # on the same connection
                task, change = await it.done(function)
                assert succeeded(task, change)
                assert msgspec.json.decode(task.result or b"") == {"rows": 1}
            assert it.notes() == [note] * 3

    asyncio.run(scenario())


def test_without_a_result_it_is_none(database_url: str) -> None:
    async def quiet() -> None:
        async with current().transaction():
            pass

    async def scenario() -> None:
        async with desk(database_url) as it:
            task, change = await it.done(quiet)
            assert succeeded(task, change)
            assert task.result == b"null"

    asyncio.run(scenario())


async def raises() -> None:
    async with current().transaction() as conn:
        await conn.execute(WRITE, (current().task_id, "never"))
        raise ValueError("no")


def raises_in_thread() -> None:
    with current().transaction() as conn:
        conn.execute(WRITE, (current().task_id, "never"))
        raise ValueError("no")


@pytest.mark.parametrize("function", [raises, raises_in_thread])
def test_an_exception_rolls_back_and_fails_the_task(database_url: str, function: Any) -> None:
    async def scenario() -> None:
        async with desk(database_url) as it:
            task, change = await it.done(function)
            assert task.state is State.CLAIMED
            assert change is not None
            assert change.event is Event.RETRY
            assert change.error is not None
            assert change.error.message == "no"
            assert it.notes() == []
            (verdict,) = await it.store.apply([change])
            assert verdict.applied

    asyncio.run(scenario())


@pytest.mark.parametrize("threaded", [False, True])
def test_a_claim_that_was_lost_inside_commits_nothing(database_url: str, threaded: bool) -> None:
    errors: list[BaseException] = []

    async def scenario() -> None:
        async with desk(database_url) as it:
            loop = asyncio.get_running_loop()

            async def lose() -> None:
                (verdict,) = await it.store.apply([lifecycle.release(run.task.task_id, run.task.token)])
                assert verdict.applied

            async def loses() -> None:
                try:
                    async with current().transaction() as conn:
                        await conn.execute(WRITE, (current().task_id, "never"))
                        await lose()
                except ClaimLost as error:
                    errors.append(error)
                    raise

            def loses_in_thread() -> None:
                try:
                    with current().transaction() as conn:
                        conn.execute(WRITE, (current().task_id, "never"))
                        asyncio.run_coroutine_threadsafe(lose(), loop).result()
                except ClaimLost as error:
                    errors.append(error)
                    raise

            run = await it.run_of(loses_in_thread if threaded else loses)
            assert await it.perform(run) is None  # nothing may be settled
            assert len(errors) == 1
            assert (await it.task(run)).state is State.READY
            assert it.notes() == []

    asyncio.run(scenario())


def test_the_same_ack_twice_commits_once(database_url: str) -> None:
    """The claim was ended by the same ack before, elsewhere: a repeat for `apply`, and too late for a block."""

    async def scenario() -> None:
        async with desk(database_url) as it:

            async def acked_elsewhere() -> None:
                async with current().transaction() as conn:
                    await conn.execute(WRITE, (current().task_id, "never"))
                    await it.store.apply([lifecycle.ack(run.task.task_id, run.task.token, b"1")])

            run = await it.run_of(acked_elsewhere)
            assert await it.perform(run) is None
            assert it.notes() == []

    asyncio.run(scenario())


def test_heartbeats_do_not_wait_for_an_open_block(database_url: str) -> None:
    async def scenario() -> None:
        async with desk(database_url) as it:

            async def rests() -> None:
                async with current().transaction() as conn:
                    await conn.execute(WRITE, (current().task_id, "kept"))
                    for _ in range(3):
                        assert await it.is_claimed(run)

            run = await it.run_of(rests)
            assert await it.perform(run) is None
            assert it.notes() == ["kept"]

    asyncio.run(scenario())


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_stricter_default_isolation_does_not_collide_with_heartbeats(
    postgres_server: PostgresServer, database: str, isolation: str
) -> None:
    postgres_server.query(f"ALTER DATABASE {database} SET default_transaction_isolation = '{isolation}'")
    test_heartbeats_do_not_wait_for_an_open_block(postgres_server.url(database))


# -- what the database refuses --------------------------------------------------------------------------------


def test_a_commit_that_is_refused_fails_the_task(database_url: str) -> None:
    async def orphan() -> None:
        async with current().transaction() as conn:
            await conn.execute("INSERT INTO child VALUES (7)")

    async def scenario() -> None:
        async with desk(database_url) as it:
            it.query("CREATE TABLE parent (id int PRIMARY KEY)")
            it.query("CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
            task, change = await it.done(orphan)
            assert task.state is State.CLAIMED
            assert change is not None
            assert change.error is not None
            assert "ForeignKeyViolation" in change.error.type
            assert it.query("SELECT * FROM child") == []

    asyncio.run(scenario())


def test_an_error_that_was_swallowed_commits_nothing(database_url: str) -> None:
    async def swallows() -> None:
        async with current().transaction() as conn:
            await conn.execute(WRITE, (current().task_id, "never"))
            with pytest.raises(psycopg.errors.DivisionByZero):
                await conn.execute("SELECT 1 / 0")

    async def scenario() -> None:
        async with desk(database_url) as it:
            task, change = await it.done(swallows)
            assert task.state is State.CLAIMED
            assert change is not None
            assert change.event is Event.RETRY
            assert it.notes() == []

    asyncio.run(scenario())


def test_a_part_may_fail_in_a_block_of_its_own(database_url: str) -> None:
    async def tries() -> None:
        async with current().transaction() as conn:
            await conn.execute(WRITE, (current().task_id, "kept"))
            with suppress(psycopg.errors.DivisionByZero):
                async with conn.transaction():
                    await conn.execute(WRITE, (current().task_id, "never"))
                    await conn.execute("SELECT 1 / 0")

    def tries_in_thread() -> None:
        with current().transaction() as conn:
            conn.execute(WRITE, (current().task_id, "kept"))
            with suppress(psycopg.errors.DivisionByZero), conn.transaction():
                conn.execute(WRITE, (current().task_id, "never"))
                conn.execute("SELECT 1 / 0")

    async def scenario() -> None:
        async with desk(database_url) as it:
            for function in (tries, tries_in_thread):
                assert succeeded(*await it.done(function))
            assert it.notes() == ["kept", "kept"]

    asyncio.run(scenario())
