"""The schema: made by the first call, once; its functions, installed again when they differ; older and newer ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from holdfast.core.lifecycle import TRANSITIONS, Event
from holdfast.core.task import NewTask, State
from holdfast.errors import StoreError, StoreTooNew, StoreUnavailable
from holdfast.stores import documents
from holdfast.stores.open import open_store
from holdfast.stores.postgres import migrate as migrate_module
from holdfast.stores.postgres.migrate import FUNCTIONS_STEP, VERSION, Migrator, SchemaText
from holdfast.stores.postgres.store import PostgresStore
from tests.postgres.schemas import STEPS, ask, migrate
from tests.servers.postgres import PostgresServer


def _store(url: str) -> PostgresStore:
    store = open_store(url)
    assert isinstance(store, PostgresStore)
    return store


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
    assert f"version {VERSION}" in after


def test_failed_step_leaves_nothing_behind(database_url: str) -> None:
    async def run() -> None:
        broken = SchemaText("CREATE TABLE half (a integer)", "SELECT no_such_thing()")
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            with pytest.raises(psycopg.errors.UndefinedFunction):
                await Migrator("holdfast", database_url, broken).migrate(connection)

    asyncio.run(run())
    assert ask(database_url, "SELECT to_regnamespace('holdfast')") == [(None,)]
    assert asyncio.run(migrate(database_url)) == STEPS


@pytest.fixture
def changed_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One more move in the lifecycle table, as a new version of the code may have it."""
    more = {**TRANSITIONS, (State.SUCCEEDED, Event.DISCARD): None}
    migrate_module._machine.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(migrate_module, "TRANSITIONS", more)
        yield
    migrate_module._machine.cache_clear()


async def _schema_findings(store: PostgresStore) -> list[tuple[str, str]]:
    return [(finding.level, finding.text) for finding in await store.probe() if finding.check == "schema"]


def test_changed_lifecycle_table_is_noticed(database_url: str, request: pytest.FixtureRequest) -> None:
    """Its functions are told to be others, and replaced by the first call."""

    async def before() -> None:
        store = _store(database_url)
        assert await store.migrate() == STEPS
        [(level, _)] = await _schema_findings(store)
        assert level == "ok"
        await store.close()

    async def after() -> None:
        store = _store(database_url)
        assert await store.migrate(dry_run=True) == [FUNCTIONS_STEP]
        [(level, text)] = await _schema_findings(store)
        assert level == "warning"
        assert "its functions are not those of this version, run: holdfast migrate" in text
        assert ask(database_url, target) == [(None,)]
        assert await store.counts() == []
        assert ask(database_url, target) == [("gone",)]
        assert await store.migrate() == [FUNCTIONS_STEP]
        assert await store.migrate(dry_run=True) == []
        await store.close()

    target = "SELECT holdfast.target('succeeded', 'discard', false)"
    asyncio.run(before())
    request.getfixturevalue("changed_machine")
    asyncio.run(after())


def test_functions_are_replaced_beside_calls(database_url: str, request: pytest.FixtureRequest) -> None:
    """A worker of the version before goes on, and keeps its tasks."""

    async def run() -> None:
        old = _store(database_url)
        await old.enqueue([NewTask(task_id="0" * 31 + "1", type="t", queue="q", payload=b"{}")])
        request.getfixturevalue("changed_machine")
        new = _store(database_url)
        await asyncio.gather(new.migrate(), *(old.counts() for _ in range(20)))
        [counts] = await old.counts()
        assert counts.states == {State.READY: 1}
        await old.close()
        await new.close()

    asyncio.run(run())


def test_schemas_in_one_database_are_apart(database_url: str) -> None:
    async def run() -> None:
        first, second = _store(f"{database_url}?schema=first"), _store(f"{database_url}?schema=second")
        await documents.pause(first, "only_here", paused=True)
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
            await documents.pause(store, "before", paused=True)
        ask(database_url, f"INSERT INTO holdfast.migrations VALUES (99, '0099_newer', {VERSION})")
        await documents.pause(store, "after", paused=True)
        assert await store.migrate() == []
        await store.close()

    asyncio.run(run())
    assert ("after",) in ask(database_url, "SELECT queue FROM holdfast.queue_settings WHERE paused")


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


def test_schema_from_before_the_first_release_is_refused_in_one_line(database_url: str) -> None:
    async def run() -> str:
        await migrate(database_url)
        ask(database_url, "UPDATE holdfast.migrations SET number = 5, oldest_code = 2")
        with pytest.raises(StoreError) as refused:
            await migrate(database_url)
        return str(refused.value)

    line = asyncio.run(run())
    assert "\n" not in line
    assert "version 5" in line
    assert 'DROP SCHEMA "holdfast" CASCADE' in line


@pytest.mark.parametrize("schema", ["user", "order", "all", "default", "table"])
def test_schema_may_be_called_like_a_word_of_sql(database_url: str, schema: str) -> None:
    async def run() -> None:
        store = _store(f"{database_url}?schema={schema}")
        await store.enqueue([NewTask(task_id="0" * 31 + "1", type="t", queue="q", payload=b"{}")])
        [counts] = await store.counts()
        assert counts.states == {State.READY: 1}
        assert await store.wait(["q"], 10_000)
        await store.close()

    asyncio.run(run())


def test_existing_schema_of_its_own_is_enough(postgres_server: PostgresServer, database: str) -> None:
    """The role may create nothing in the database but in the schema that was made for it."""
    with postgres_server.connect(database) as owner:
        owner.execute(f"CREATE ROLE {database} LOGIN")
        owner.execute(f"REVOKE ALL ON DATABASE {database} FROM PUBLIC")
        owner.execute(f"GRANT CONNECT ON DATABASE {database} TO {database}")
        owner.execute(f"CREATE SCHEMA own AUTHORIZATION {database}")
    try:
        assert asyncio.run(migrate(postgres_server.url(database, user=database, schema="own"))) == STEPS
    finally:
        postgres_server.query(f"DROP OWNED BY {database} CASCADE", database=database)
        postgres_server.query(f"DROP ROLE {database}")


def test_dropped_schema_is_made_again(database_url: str) -> None:
    async def run() -> None:
        store = _store(database_url)
        await documents.pause(store, "q", paused=True)
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
            await strict.lead("maintenance", "owner", 1_000)
        await strict.close()

    asyncio.run(scenario())
