"""Behind pgbouncer in transaction mode, where sessions do not last and prepared statements are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.errors import BadUrl, DurabilityUnknown, StoreUnavailable
from holdfast.stores.postgres.doctor import probe
from tests.postgres.link.helpers import ids_in, make_schema, opened, recording
from tests.servers.callers import in_thread, one_line, until
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer


@pytest.fixture
def bouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    with PgBouncer(postgres_server, default_pool_size=2) as bouncer:
        yield bouncer


def test_calls_work_and_leave_nothing_in_shared_sessions(
    bouncer: PgBouncer, url: str, postgres_server: PostgresServer, database: str
) -> None:
    # Worse than the default: what must be durable has to say so itself.
    postgres_server.alter(synchronous_commit="off")
    other_client = "SELECT current_setting('synchronous_commit'), current_setting('lock_timeout')"

    async def scenario() -> None:
        async with opened(bouncer.url(database)) as link:
            callers = recording(link)
            await callers.more(100)
            acknowledged = await callers.stop()
            assert await link.call("record", "loose", b"") == [("created",)]
            assert await link.call("record_quietly", "quiet", safe=True) == []
            levels = dict(await link.call("levels"))
            assert {levels[name] for name in acknowledged | {"quiet"}} == {"local"}
            assert levels["loose"] == "off"
            for _ in range(5):
                assert await in_thread(bouncer.query, other_client, database) == [("off", "0")]

    asyncio.run(scenario())


def test_prepared_statements_are_a_mistake(bouncer: PgBouncer, url: str, database: str) -> None:
    async def scenario() -> None:
        async with opened(bouncer.url(database), prepare="on") as link:
            with pytest.raises(BadUrl) as caught:
                await asyncio.gather(*(link.call("record", f"{number}", b"") for number in range(50)))
            assert "a pooler loses prepared statements; leave prepare=on out" in one_line(caught.value)

    asyncio.run(scenario())


def test_bells_are_heard_past_the_pooler(
    bouncer: PgBouncer, url: str, postgres_server: PostgresServer, database: str
) -> None:
    async def scenario() -> None:
        async with opened(bouncer.url(database), listen=url) as link:
            await link.wait(["default"], 100)
            waiters = [asyncio.create_task(link.wait(["default"], 20_000)) for _ in range(2)]
            waiting = "SELECT 1 FROM holdfast.waiting"
            await until(lambda: postgres_server.query(waiting, database=database), "the server knows who waits")
            link.notify(["default"])
            done, pending = await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result() for task in done] == [True]
            link.notify(["default"])
            assert await pending.pop() is True
            assert [finding.text for finding in await probe(link) if finding.check == "pooler"] == [
                "in the way, as the URL says"
            ]

    asyncio.run(scenario())


@pytest.mark.parametrize("listen", ["same", "poll"])
def test_without_a_listener_waits_are_short(bouncer: PgBouncer, url: str, database: str, listen: str) -> None:
    async def scenario() -> None:
        async with opened(bouncer.url(database), listen=listen) as link:
            async with asyncio.timeout(60):
                assert await link.wait(["default"], 600_000) is False
                assert await link.wait(["default"], 600_000) is False
            link.notify(["default"])
            levels = {finding.level for finding in await probe(link) if finding.check == "pooler"}
            assert levels == {"warning" if listen == "same" else "ok"}

    asyncio.run(scenario())


def test_restart_of_the_server_behind_goes_unnoticed(durable_postgres: PostgresServer) -> None:
    database = durable_postgres.make_database()
    make_schema(durable_postgres.url(database))

    async def scenario(bouncer: PgBouncer) -> None:
        async with opened(bouncer.url(database), deadline="60s") as link:
            callers = recording(link)
            await callers.more()
            await in_thread(lambda: durable_postgres.restart(kill=True))
            await callers.more()
            acknowledged = await callers.stop()
            assert callers.gave_up == 0
            assert await ids_in(link) >= acknowledged

    with PgBouncer(durable_postgres) as bouncer:
        asyncio.run(scenario(bouncer))
    durable_postgres.drop_database(database)


def test_strict_behind_a_pooler(bouncer: PgBouncer, url: str, postgres_server: PostgresServer, database: str) -> None:
    async def scenario() -> None:
        async with opened(bouncer.url(database), durability="strict", deadline="500ms") as link:
            with pytest.raises(StoreUnavailable, match="durability=strict writes nothing"):
                await link.call("record", "a", b"", safe=True)
            await in_thread(lambda: postgres_server.alter(synchronous_standby_names="nobody"))
            with pytest.raises(DurabilityUnknown, match="no synchronous standby has confirmed it"):
                await link.call("record", "a", b"", safe=True)
            assert await ids_in(link) == set()
            await in_thread(postgres_server.reset)

    asyncio.run(scenario())
