"""The schema: made by itself, step by step, once; older and newer ones."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from holdfast.errors import StoreTooNew, StoreUnavailable
from holdfast.stores.open import open_store
from holdfast.stores.postgres.migrating import Migrator
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.text import migrations
from tests.postgres.schemas import STEPS, ask, dump, migrate
from tests.servers.postgres import PostgresServer


def _store(url: str) -> PostgresStore:
    store = open_store(url)
    assert isinstance(store, PostgresStore)
    return store


def test_step_by_step_gives_what_all_at_once_gives(postgres_server: PostgresServer, database_url: str) -> None:
    at_once = postgres_server.make_database()

    async def one_step_at_a_time() -> None:
        for number in range(1, len(STEPS) + 1):
            async with await psycopg.AsyncConnection.connect(database_url) as connection:
                migrator = Migrator("holdfast", database_url, migrations("holdfast")[:number])
                assert await migrator.migrate(connection) == [STEPS[number - 1]]

    asyncio.run(one_step_at_a_time())
    assert asyncio.run(migrate(postgres_server.url(at_once))) == STEPS
    assert dump(database_url) == dump(postgres_server.url(at_once))
    postgres_server.drop_database(at_once)


def test_first_call_makes_the_schema(database_url: str) -> None:
    async def run() -> None:
        store = _store(database_url)
        assert await store.counts() == []
        assert await store.migrate() == STEPS
        assert await store.migrate() == []
        await store.close()

    asyncio.run(run())


def test_many_that_open_at_once_take_each_step_once(database_url: str) -> None:
    async def run() -> list[list[str]]:
        return await asyncio.gather(*(migrate(database_url) for _ in range(8)))

    taken = asyncio.run(run())
    assert sorted(step for steps in taken for step in steps) == STEPS
    assert len(ask(database_url, "SELECT 1 FROM holdfast.migrations")) == len(STEPS)


def test_dry_run_changes_nothing(database_url: str) -> None:
    async def pending() -> list[str]:
        store = _store(database_url)
        steps = await store.migrate(dry_run=True)
        await store.close()
        return steps

    assert asyncio.run(pending()) == STEPS
    assert ask(database_url, "SELECT to_regnamespace('holdfast')") == [(None,)]
    asyncio.run(migrate(database_url))
    assert asyncio.run(pending()) == []


def test_status_tells_the_version(database_url: str) -> None:
    async def schema_lines() -> list[str]:
        store = _store(database_url)
        lines = [finding.text for finding in await store.probe() if finding.check == "schema"]
        await store.close()
        return lines

    [before] = asyncio.run(schema_lines())
    assert "version 0" in before
    asyncio.run(migrate(database_url))
    [after] = asyncio.run(schema_lines())
    assert f"version {len(STEPS)}" in after


def test_failed_step_leaves_nothing_behind(database_url: str) -> None:
    async def run() -> None:
        steps = migrations("holdfast")
        broken = type(steps[1])(2, "0002_broken", 1, "CREATE TABLE half (a integer); SELECT no_such_thing()")
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            with pytest.raises(psycopg.errors.UndefinedFunction):
                await Migrator("holdfast", database_url, [steps[0], broken]).migrate(connection)

    asyncio.run(run())
    assert ask(database_url, "SELECT to_regnamespace('holdfast')") == [(None,)]
    assert asyncio.run(migrate(database_url)) == STEPS


def test_schemas_in_one_database_are_apart(database_url: str) -> None:
    async def run() -> None:
        first, second = _store(f"{database_url}?schema=first"), _store(f"{database_url}?schema=second")
        await first.pause("only_here", paused=True)
        assert [queue.queue for queue in await first.counts()] == ["only_here"]
        assert await second.counts() == []
        await first.close()
        await second.close()

    asyncio.run(run())


@pytest.mark.parametrize("running", [False, True], ids=["opened after", "running through"])
def test_newer_schema_that_takes_old_workers_is_used(database_url: str, running: bool) -> None:
    async def run() -> None:
        await migrate(database_url)
        store = _store(database_url)
        if running:
            await store.pause("before", paused=True)
        ask(database_url, f"INSERT INTO holdfast.migrations VALUES (99, '0099_newer', {len(STEPS)})")
        await store.pause("after", paused=True)
        assert await store.migrate() == []
        await store.close()

    asyncio.run(run())
    assert ("after",) in ask(database_url, "SELECT queue FROM holdfast.paused")


@pytest.mark.parametrize("running", [False, True], ids=["opened after", "running through"])
def test_newer_schema_without_old_workers_says_to_replace_them(database_url: str, running: bool) -> None:
    async def run() -> str:
        await migrate(database_url)
        store = _store(database_url)
        if running:
            await store.counts()
        ask(database_url, "INSERT INTO holdfast.migrations VALUES (99, '0099_newer', 99)")
        ask(database_url, "DROP FUNCTION holdfast.depths")
        with pytest.raises(StoreTooNew) as refused:
            await store.counts()
        await store.close()
        return str(refused.value)

    line = asyncio.run(run())
    assert "\n" not in line
    assert "version 99" in line
    assert "replace it" in line


def test_dropped_schema_is_made_again(database_url: str) -> None:
    async def run() -> None:
        store = _store(database_url)
        await store.pause("q", paused=True)
        ask(database_url, "SET client_min_messages = error; DROP SCHEMA holdfast CASCADE")
        assert await store.counts() == []
        await store.close()

    asyncio.run(run())


def test_people_can_look_while_no_standby_confirms(durable_database_url: str) -> None:
    async def scenario() -> None:
        plain = open_store(durable_database_url)
        await plain.migrate()
        await plain.close()
        strict = open_store(f"{durable_database_url}?durability=strict&deadline=1s")
        assert await strict.counts() == []
        with pytest.raises(StoreUnavailable, match="no synchronous standby"):
            await strict.hold_duty("upkeep", "somebody", 1_000)
        await strict.close()

    asyncio.run(scenario())
