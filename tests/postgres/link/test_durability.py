"""What `safe` means at each level: waits for standbys are never cut short, and never taken for success."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.errors import DurabilityUnknown, StoreUnavailable
from holdfast.stores.postgres.calls import Database
from tests.postgres.link.helpers import Wire, ids_in, make_schema, opened, recording
from tests.servers.callers import in_thread, one_line, until
from tests.servers.postgres import PostgresServer, server_url

#: A standby that commits wait for, and that never comes.
NOBODY = "nobody"
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary, and a synchronous standby."""
    with PostgresServer() as primary, primary.standby("mate") as standby:
        primary.alter(synchronous_standby_names="mate")
        primary.wait_for_standby("mate", "sync")
        yield primary, standby


@pytest.fixture
def replicated(servers: tuple[PostgresServer, PostgresServer]) -> Iterator[tuple[PostgresServer, str, str]]:
    """The primary, and the URL and the name of a new database."""
    primary, _ = servers
    name = primary.make_database()
    make_schema(primary.url(name))
    yield primary, primary.url(name), name
    primary.alter(synchronous_standby_names="mate")
    primary.drop_database(name)


async def levels(database: Database) -> dict[str, str]:
    return dict(await database.call("levels"))


@pytest.mark.parametrize(("durability", "safely"), [("local", "local"), ("replicated", "on"), ("strict", "on")])
def test_each_call_commits_as_durably_as_it_must(
    replicated: tuple[PostgresServer, str, str], durability: str, safely: str
) -> None:
    async def scenario() -> None:
        async with opened(replicated[1], durability=durability) as database:
            assert await database.call("record", "plain", b"") == [("created",)]
            assert await database.call("record", "safe", b"", safe=True) == [("created",)]
            assert await database.call("record", "safe", b"", safe=True) == [("known",)]
            # Nothing returned is nothing returned, and the level holds all the same.
            assert await database.call("record_quietly", "quiet", safe=True) == []
            assert await database.call("record", "plain again", b"") == [("created",)]
            assert await levels(database) == {
                "plain": "local",
                "plain again": "local",
                "quiet": safely,
                "safe": safely,
            }

    asyncio.run(scenario())


def test_replicated_survives_the_loss_of_the_primary() -> None:
    with PostgresServer() as primary, primary.standby("mate") as standby:
        primary.alter(synchronous_standby_names="mate")
        primary.wait_for_standby("mate", "sync")
        make_schema(primary.url())

        async def scenario() -> None:
            async with opened(primary.url(), durability="replicated") as database:
                callers = recording(database)
                await callers.more(100)
                await in_thread(primary.kill)
                await in_thread(standby.promote)
                both = server_url([primary.port, standby.port], "postgres")
                async with opened(both) as after:
                    assert await ids_in(after) >= set(callers.acknowledged)
                callers.abandon()

        asyncio.run(scenario())


@pytest.mark.parametrize("durability", ["replicated", "strict"])
def test_silent_standby_is_no_success(replicated: tuple[PostgresServer, str, str], durability: str) -> None:
    primary, url, _ = replicated
    primary.alter(synchronous_standby_names=NOBODY)

    async def scenario(url: str, wire: Wire) -> None:
        async with opened(url, durability=durability, deadline="1s") as database:
            for _ in range(2):
                with pytest.raises(DurabilityUnknown) as caught:
                    await database.call("record", "a", b"", safe=True)
                assert "no synchronous standby has confirmed it" in one_line(caught.value)
            # Calls that need no standby go on meanwhile.
            assert await database.call("record", "b", b"") == [("created",)]
            assert await ids_in(database) == {"b"}
            await in_thread(lambda: primary.alter(synchronous_standby_names="mate"))
            await until(lambda: primary.query(WAITING) == [], "nobody waits any more")
            assert await database.call("record", "a", b"", safe=True) == [("known",)]
        assert wire.cancel_requests == 0

    with Wire(primary.address) as wire:
        asyncio.run(scenario(wire.url_for(url, primary.port), wire))


def test_silent_standby_takes_only_some_of_the_connections(replicated: tuple[PostgresServer, str, str]) -> None:
    primary, url, _ = replicated
    primary.alter(synchronous_standby_names=NOBODY)

    async def scenario() -> None:
        async with opened(url, durability="replicated", deadline="300ms", connections=5) as database:
            for _ in range(3):
                calls = [database.call("record", f"{number}", b"", safe=True) for number in range(10)]
                ends = await asyncio.gather(*calls, return_exceptions=True)
                assert [type(end) for end in ends] == [DurabilityUnknown] * 10
            assert len(await in_thread(primary.query, WAITING)) <= 3
            assert await database.call("record", "beside", b"") == [("created",)]
            await in_thread(lambda: primary.alter(synchronous_standby_names="mate"))
            await until(lambda: primary.query(WAITING) == [], "nobody waits any more")
            assert await database.call("record", "0", b"", safe=True) == [("known",)]

    asyncio.run(scenario())


def test_patience_is_longer_than_one_try(replicated: tuple[PostgresServer, str, str]) -> None:
    primary, url, _ = replicated
    primary.alter(synchronous_standby_names=NOBODY)

    async def scenario() -> None:
        async with opened(url, durability="replicated", deadline="30s") as database:
            call = asyncio.create_task(database.call("record", "a", b"", safe=True))
            await until(lambda: primary.query(WAITING), "it waits for the standby")
            # Longer than a try takes, and still the same backend.
            waiting = await in_thread(primary.query, WAITING)
            await asyncio.wait([call], timeout=6)
            assert await in_thread(primary.query, WAITING) == waiting
            await in_thread(lambda: primary.alter(synchronous_standby_names="mate"))
            assert await call == [("created",)]

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_wait_that_the_server_broke_off_is_no_success(replicated: tuple[PostgresServer, str, str], how: str) -> None:
    primary, url, _ = replicated
    primary.alter(synchronous_standby_names=NOBODY)
    broken_off = f"SELECT {how}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

    async def scenario() -> None:
        async with opened(url, durability="replicated", deadline="60s") as database:
            call = asyncio.create_task(database.call("record", "a", b"", safe=True))
            await until(lambda: primary.query(broken_off), "a wait to break off")
            # Committed here, as the server told with its warning, and still not reported: the call is made again.
            await until(lambda: primary.query("SELECT 1 FROM holdfast.recorded", database=replicated[2]), "committed")
            assert not call.done()
            await in_thread(lambda: primary.alter(synchronous_standby_names="mate"))
            assert await call == [("known",)]

    asyncio.run(scenario())


def test_cancelled_caller_does_not_break_off_the_wait(replicated: tuple[PostgresServer, str, str]) -> None:
    primary, url, _ = replicated
    primary.alter(synchronous_standby_names=NOBODY)

    async def scenario(url: str, wire: Wire) -> None:
        async with opened(url, durability="replicated", deadline="60s") as database:
            call = asyncio.create_task(database.call("record", "a", b"", safe=True))
            await until(lambda: primary.query(WAITING), "it waits for the standby")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await ids_in(database) == set()
            assert len(await in_thread(primary.query, WAITING)) == 1
        assert wire.cancel_requests == 0

    with Wire(primary.address) as wire:
        asyncio.run(scenario(wire.url_for(url, primary.port), wire))


def test_transaction_waits_too(replicated: tuple[PostgresServer, str, str]) -> None:
    primary, url, _ = replicated
    primary.alter(synchronous_standby_names=NOBODY)

    async def change(database: Database) -> None:
        async with database.transaction() as connection:
            await connection.execute("INSERT INTO holdfast.recorded (id) VALUES ('a')")

    async def scenario() -> None:
        async with opened(url, durability="replicated", deadline="500ms") as database:
            with pytest.raises(DurabilityUnknown):
                await change(database)
            assert await ids_in(database) == set()

    asyncio.run(scenario())


def test_commit_whose_wait_was_broken_off_is_no_success(replicated: tuple[PostgresServer, str, str]) -> None:
    primary, url, _ = replicated
    primary.alter(synchronous_standby_names=NOBODY)
    broken_off = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

    async def change(database: Database) -> None:
        async with database.transaction() as connection:
            await connection.execute("INSERT INTO holdfast.recorded (id) VALUES ('a')")

    async def scenario() -> None:
        async with opened(url, durability="replicated", deadline="60s") as database:
            changing = asyncio.create_task(change(database))
            await until(lambda: primary.query(broken_off), "a commit to break off")
            with pytest.raises(DurabilityUnknown):
                await changing

    asyncio.run(scenario())


def test_strict_writes_nothing_without_a_standby(replicated: tuple[PostgresServer, str, str]) -> None:
    primary, url, _ = replicated
    primary.alter(synchronous_standby_names="")

    async def change(database: Database) -> None:
        async with database.transaction() as connection:
            await connection.execute("INSERT INTO holdfast.recorded (id) VALUES ('c')")

    async def scenario() -> None:
        async with opened(url, durability="strict", deadline="300ms") as database:
            with pytest.raises(StoreUnavailable) as caught:
                await database.call("record", "a", b"", safe=True)
            assert "no synchronous standby, without which durability=strict writes nothing" in one_line(caught.value)
            with pytest.raises(StoreUnavailable, match="durability=strict writes nothing"):
                await change(database)
            assert await ids_in(database) == set()
        async with opened(url, durability="replicated") as database:
            assert await database.call("record", "b", b"", safe=True) == [("created",)]

    asyncio.run(scenario())
