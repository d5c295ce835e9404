"""What a block commits, and what it does not."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.rows import dict_row

from holdfast import Holdfast, Snooze, current
from holdfast.core import lifecycle
from holdfast.core.lifecycle import Event
from holdfast.core.task import State
from holdfast.errors import ClaimLost, UsageError
from tests.postgres.transactions.completion.desk import WRITE, desk, succeeded
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.support import eventually


async def writes() -> None:
    async with current().transaction() as conn:
        await conn.execute(WRITE, (current().task_id, "coroutine"))
        current().set_result({"rows": 1})


def writes_in_thread() -> None:
    with current().transaction() as conn:
        conn.execute(WRITE, (current().task_id, "thread"))
        current().set_result({"rows": 1})


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


# -- wrong use ------------------------------------------------------------------------------------------------


async def commits() -> None:
    async with current().transaction() as conn:
        await conn.commit()


async def rolls_back() -> None:
    async with current().transaction() as conn:
        await conn.rollback()


def commits_in_thread() -> None:
    with current().transaction() as conn:
        conn.commit()


def rolls_back_in_thread() -> None:
    with current().transaction() as conn:
        conn.rollback()


async def ends_by_hand() -> None:
    async with current().transaction() as conn:
        await conn.execute("ROLLBACK")


async def ends_and_begins_by_hand() -> None:
    async with current().transaction() as conn:
        await conn.execute("COMMIT")
        await conn.execute("BEGIN")
        await conn.execute(WRITE, (current().task_id, "never"))


async def nests() -> None:
    async with current().transaction(), current().transaction():
        pass


async def blocks_the_loop() -> None:
    with current().transaction():
        pass


async def result_outside() -> None:
    current().set_result(1)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (commits, "commit() has no place inside the block"),
        (rolls_back, "rollback() has no place inside the block"),
        (commits_in_thread, "commit() has no place inside the block"),
        (rolls_back_in_thread, "rollback() has no place inside the block"),
        (ends_by_hand, "leave COMMIT and ROLLBACK to the block"),
        (ends_and_begins_by_hand, "leave COMMIT and ROLLBACK to the block"),
        (nests, "a block of this run is still open"),
        (blocks_the_loop, "write: async with current().transaction() as conn:"),
        (result_outside, "set_result() is for the inside of a transaction() block"),
    ],
)
def test_wrong_use_is_told_in_one_line_and_commits_nothing(database_url: str, function: Any, words: str) -> None:
    async def scenario() -> None:
        async with desk(database_url) as it:
            task, change = await it.done(function)
            assert task.state is State.CLAIMED
            assert change is not None
            assert change.error is not None
            assert change.error.type.endswith("UsageError")
            assert words in change.error.message
            assert "\n" not in change.error.message
            assert it.notes() == []

    asyncio.run(scenario())


def test_a_second_block_after_the_commit_is_refused(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def twice() -> None:
        for note in ("kept", "never"):
            async with current().transaction() as conn:
                await conn.execute(WRITE, (current().task_id, note))

    async def scenario() -> None:
        async with desk(database_url) as it:
            assert succeeded(*await it.done(twice))
            assert it.notes() == ["kept"]

    asyncio.run(scenario())
    assert "a block of this run has finished the task already" in caplog.text


def test_a_block_that_was_rolled_back_may_be_tried_again(database_url: str) -> None:
    async def insists() -> None:
        for note in ("never", "kept"):
            try:
                async with current().transaction() as conn:
                    await conn.execute(WRITE, (current().task_id, note))
                    if note == "never":
                        raise ZeroDivisionError
            except ZeroDivisionError:
                continue

    async def scenario() -> None:
        async with desk(database_url) as it:
            assert succeeded(*await it.done(insists))
            assert it.notes() == ["kept"]

    asyncio.run(scenario())


def test_other_stores_refuse_in_one_line() -> None:
    async def scenario() -> None:
        from tests.worker.rig import Rig

        errors: list[str] = []

        async def work() -> None:
            try:
                async with current().transaction():
                    pass
            except UsageError as error:
                errors.append(str(error))

        rig = Rig(work)
        await rig.enqueue(1)
        await rig.work_off()
        (line,) = errors
        assert "PostgreSQL" in line
        assert "once()" in line
        assert "sqlite" in line
        assert "\n" not in line

    asyncio.run(scenario())


# -- after the commit -----------------------------------------------------------------------------------------


async def raises_afterwards() -> None:
    await writes()
    raise ValueError("too late")


async def snoozes_afterwards() -> Snooze:
    await writes()
    return Snooze("1h")


async def raises_snooze_afterwards() -> None:
    await writes()
    raise Snooze("1h")


async def returns_another() -> Any:
    await writes()
    return {"rows": 2}


async def returns_what_cannot_be_stored() -> Any:
    await writes()
    return object()


def raises_afterwards_in_thread() -> None:
    writes_in_thread()
    raise ValueError("too late")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (raises_afterwards, "ValueError: too late"),
        (raises_afterwards_in_thread, "ValueError: too late"),
        (snoozes_afterwards, "what came after that changes nothing: Snooze"),
        (raises_snooze_afterwards, "what came after that changes nothing: Snooze"),
        (returns_another, "what it returned after that is not stored"),
        (returns_what_cannot_be_stored, "what came after that changes nothing"),
    ],
)
def test_what_comes_after_the_commit_is_logged_and_changes_nothing(
    database_url: str, caplog: pytest.LogCaptureFixture, function: Any, words: str
) -> None:
    async def scenario() -> None:
        async with desk(database_url) as it:
            task, change = await it.done(function)
            assert succeeded(task, change)
            assert msgspec.json.decode(task.result or b"") == {"rows": 1}
            assert task.task_id in caplog.text

    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        asyncio.run(scenario())
    assert words in caplog.text


def test_the_same_value_or_none_may_be_returned(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def returns_the_same() -> Any:
        await writes()
        assert not current().claim_lost
        return {"rows": 1}

    async def scenario() -> None:
        async with desk(database_url) as it:
            for function in (returns_the_same, writes):
                assert succeeded(*await it.done(function))

    asyncio.run(scenario())
    assert "after that" not in caplog.text


# -- connections ----------------------------------------------------------------------------------------------


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
