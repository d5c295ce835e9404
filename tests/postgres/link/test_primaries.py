"""Several servers in one URL: the primary is found, lost and found again."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import StoreUnavailable
from tests.postgres.link.helpers import ids_in, make_schema, opened, recording
from tests.servers.callers import in_thread, one_line
from tests.servers.postgres import PostgresServer, server_url
from tests.support import free_port

pytestmark = pytest.mark.alone


def test_primary_is_found_wherever_it_stands(url: str, postgres_server: PostgresServer, database: str) -> None:
    async def scenario() -> None:
        for ports in ([free_port(), postgres_server.port], [postgres_server.port, free_port()]):
            async with opened(server_url(ports, database)) as link:
                await link.call("record", str(ports), b"")

    asyncio.run(scenario())


def test_standby_alone_is_refused() -> None:
    with PostgresServer() as primary, primary.standby() as standby:
        make_schema(primary.url())

        async def scenario() -> None:
            dead = free_port()
            async with opened(server_url([standby.port, dead], "postgres"), deadline="300ms") as database:
                with pytest.raises(StoreUnavailable) as caught:
                    await database.call("record", "a", b"")
                text = one_line(caught.value)
                assert f"{standby.port}: a standby, which takes no writes" in text
                assert f"{dead}: connection refused" in text

        asyncio.run(scenario())


@pytest.mark.parametrize("how", ["kill", pytest.param("freeze", marks=pytest.mark.long)])
def test_promoted_standby_is_found_without_a_restart(how: str) -> None:
    with PostgresServer() as primary, primary.standby("mate") as standby:
        primary.alter(synchronous_standby_names="mate")
        primary.wait_for_standby("mate", "sync")
        make_schema(primary.url())
        standby.configure(synchronous_standby_names="")

        async def scenario() -> None:
            both = server_url([primary.port, standby.port], "postgres")
            async with opened(both, durability="replicated", deadline="60s") as database:
                await database.wait(["default"], 100)
                callers = recording(database)
                await callers.more(50)
                await in_thread(getattr(primary, how))
                await in_thread(standby.promote)
                await callers.more(50)
                acknowledged = await callers.stop()
                assert callers.gave_up == 0
                assert await ids_in(database) >= acknowledged
                # Bells are heard on the new primary, too.
                waiter = asyncio.create_task(database.wait(["default"], 60_000))
                while not waiter.done():
                    database.notify(["default"])
                    await asyncio.wait([waiter], timeout=0.1)

        asyncio.run(scenario())


def test_primary_that_became_a_standby_is_left() -> None:
    with PostgresServer() as first, first.standby() as second:
        first.wait_for_standby()
        make_schema(first.url())

        async def scenario() -> None:
            both = server_url([first.port, second.port], "postgres")
            async with opened(both, deadline="60s") as database:
                await database.call("record", "before", b"")
                # Its sessions live on, but take no writes any more: as good as a standby.
                await in_thread(lambda: first.alter(default_transaction_read_only=True))
                await in_thread(second.promote)
                assert await database.call("record", "after", b"") == [("created",)]
                assert await ids_in(database) >= {"after"}
                assert "after" not in await in_thread(_recorded, first)
                assert "after" in await in_thread(_recorded, second)

        asyncio.run(scenario())


def _recorded(server: PostgresServer) -> set[str]:
    return {name for (name,) in server.query("SELECT id FROM holdfast.recorded")}
