"""Waiting for a bell: one waiter a ring, in any process, through restarts, and never longer than asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.stores.postgres.calls import Database
from holdfast.stores.postgres.wakeup import NOTIFY_EVERY_SECONDS
from tests.postgres.link.helpers import Wire, opened
from tests.servers.callers import in_thread, until
from tests.servers.postgres import PostgresServer

BELL = "default"

#: Waiters whose backend is gone.
DEAD = """
INSERT INTO holdfast.waiting SELECT 'default', holdfast.wakeup_ms(), 'a dead one ' || n, 0 FROM generate_series(1, 20) n
"""


class Table:
    """What the server knows of bells."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self._server = server
        self._database = database

    def waiting(self, bell: str = BELL) -> int:
        return len(self._query("SELECT 1 FROM holdfast.waiting WHERE wakeup = %s", bell))

    def unheard(self) -> set[str]:
        return {bell for (bell,) in self._query("SELECT wakeup FROM holdfast.unheard")}

    async def until_waiting(self, count: int, bell: str = BELL) -> None:
        await until(lambda: self.waiting(bell) == count, f"{count} wait for {bell}")

    def _query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._server.query(sql, *values, database=self._database)


@pytest.fixture
def table(postgres_server: PostgresServer, database: str) -> Table:
    return Table(postgres_server, database)


async def hung_up(waiters: Sequence[asyncio.Task[bool]]) -> None:
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)


def waiters_of(database: Database, *bells: str, count: int = 1) -> list[asyncio.Task[bool]]:
    return [asyncio.create_task(database.wait(bells or [BELL], 20_000)) for _ in range(count)]


def test_nothing_rings(url: str) -> None:
    async def scenario() -> None:
        async with opened(url) as database:
            assert await database.wait([BELL], 20) is False
            assert await database.wait([BELL], 0) is False

    asyncio.run(scenario())


def test_one_ring_wakes_one_waiter(url: str, table: Table) -> None:
    async def scenario() -> None:
        async with opened(url) as ringer, opened(url) as one, opened(url) as other:
            await ringer.call("levels")
            await one.wait([BELL], 100)  # until somebody listens, waits are no longer than a poll
            await other.wait([BELL], 100)
            await table.until_waiting(2)
            waiters = waiters_of(one, "another", BELL, count=50) + waiters_of(other, BELL, count=50)
            for left in (99, 98, 97):
                ringer.notify([BELL])
                done, waiting = await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
                assert [task.result() for task in done] == [True]
                assert len(waiting) == left
                waiters = list(waiting)
                # The process whose waiter was woken has others, and says so again.
                await table.until_waiting(2)
            await hung_up(waiters)

    asyncio.run(scenario())


def test_ring_wakes_its_own_bell_only(url: str, table: Table) -> None:
    async def scenario() -> None:
        async with opened(url) as database:
            await database.wait(["a", "b"], 100)
            (waiter_of_a,) = waiters_of(database, "a")
            (waiter_of_b,) = waiters_of(database, "b")
            await table.until_waiting(1, "b")
            database.notify(["b", "c"])
            assert await waiter_of_b is True
            assert not waiter_of_a.done()
            await until(lambda: table.unheard() == {"c"}, "the ring that nobody heard is marked")
            await hung_up([waiter_of_a])

    asyncio.run(scenario())


def test_ring_before_the_wait_is_heard(url: str, table: Table) -> None:
    async def scenario() -> None:
        async with opened(url) as database:
            await database.call("levels")
            for _ in range(3):
                database.notify([BELL])
            await until(lambda: table.unheard() == {BELL}, "the ring is kept")
            assert await database.wait([BELL], 20_000) is True
            assert await in_thread(table.unheard) == set()
            assert await database.wait([BELL], 20) is False

    asyncio.run(scenario())


def test_ring_for_a_process_that_waits_no_more_goes_to_another(url: str, table: Table) -> None:
    async def scenario() -> None:
        async with opened(url) as busy, opened(url) as idle:
            # In this order: the first in the table is asked first, whichever that is.
            for database in (busy, idle):
                await database.wait([BELL], 100)
            await table.until_waiting(2)
            (waiter,) = waiters_of(idle)
            busy.notify([BELL])
            assert await waiter is True
            # The row of the busy one may still be there; it is used up by the next ring, which is passed on.
            (waiter,) = waiters_of(idle)
            await until(lambda: table.waiting() >= 1, "the idle one waits again")
            busy.notify([BELL])
            assert await waiter is True

    asyncio.run(scenario())


def test_cancelled_waiter_takes_no_ring(url: str, table: Table) -> None:
    async def scenario() -> None:
        async with opened(url) as database:
            await database.wait([BELL], 100)
            waiters = waiters_of(database)
            await table.until_waiting(1)
            await hung_up(waiters)
            database.notify([BELL])
            assert await database.wait([BELL], 20_000) is True

    asyncio.run(scenario())


def test_waiter_that_is_cancelled_in_the_moment_of_the_ring_passes_it_on(url: str, table: Table) -> None:
    async def scenario() -> None:
        async with opened(url) as database:
            await database.wait([BELL], 100)
            (waiter,) = waiters_of(database)
            await table.until_waiting(1)
            await asyncio.sleep(0)
            session = await database._sessions.get()
            session.wakeups._listener._heard(BELL)
            waiter.cancel()
            await asyncio.gather(waiter, return_exceptions=True)
            assert await database.wait([BELL], 20_000) is True

    asyncio.run(scenario())


def test_ring_in_the_moment_of_the_timeout_is_heard(url: str, table: Table) -> None:
    async def scenario() -> None:
        async with opened(url) as database:
            await database.wait([BELL], 100)
            await table.until_waiting(1)
            loop = asyncio.get_running_loop()
            listener = (await database._sessions.get()).wakeups._listener
            waiter = asyncio.create_task(database.wait([BELL], 200))
            await asyncio.sleep(0)
            begun = loop.time()

            def be_busy() -> None:
                while loop.time() < begun + 0.25:
                    pass

            # Both are due when the loop is free again: first the ring, then, before the waiter knows, the timeout.
            loop.call_at(begun + 0.05, be_busy)
            loop.call_at(begun + 0.19, listener._heard, BELL)
            assert await waiter is True

    asyncio.run(scenario())


def test_ring_that_arrives_together_with_an_answer_is_heard(
    url: str, table: Table, postgres_server: PostgresServer, database: str
) -> None:
    async def scenario(url: str, wire: Wire) -> None:
        async with opened(url) as link:
            await link.wait(["another"], 100)
            await table.until_waiting(1, "another")
            wire.holding = True
            waiter = asyncio.create_task(link.wait([BELL], 10_000))
            await table.until_waiting(1)
            await in_thread(
                lambda: postgres_server.query(f"SELECT holdfast.notify(ARRAY['{BELL}'])", database=database)
            )
            await until(lambda: BELL.encode() in wire.held, "the ring is on the wire, behind the answer")
            wire.holding = False
            assert await waiter is True

    with Wire(postgres_server.address) as wire:
        asyncio.run(scenario(wire.url_for(url, postgres_server.port), wire))


def test_rings_in_quick_succession_are_all_heard(url: str, postgres_server: PostgresServer, database: str) -> None:
    async def scenario() -> None:
        async with opened(url) as link:
            await link.wait([BELL], 100)
            with postgres_server.connect(database) as ringer:
                for _ in range(300):
                    # The ring may come before the wait, in the same moment as the answer that we wait, or later.
                    waiter = asyncio.create_task(link.wait([BELL], 10_000))
                    await in_thread(ringer.execute, "SELECT holdfast.notify(ARRAY['default', 'another'])")
                    assert await waiter is True

    asyncio.run(scenario())


def test_first_ring_goes_at_once_and_the_next_ones_together(
    url: str, postgres_server: PostgresServer, database: str
) -> None:
    async def scenario() -> None:
        async with opened(url) as link:
            await link.call("levels")
            loop = asyncio.get_running_loop()
            begun = loop.time()
            rings = 0
            while loop.time() - begun < 1:
                link.notify([f"bell {rings % 10}"])
                rings += 1
                await asyncio.sleep(0)
            seconds = loop.time() - begun
        statements = await in_thread(lambda: postgres_server.value(calls, database=database))
        assert rings > 500
        assert 2 <= statements <= seconds / NOTIFY_EVERY_SECONDS + 2

    calls = "SELECT count(*) FROM rung"
    postgres_server.query("CREATE TABLE rung (names text[])", database=database)
    postgres_server.query("DROP FUNCTION holdfast.notify", database=database)
    counting = "RETURNS void LANGUAGE sql AS 'INSERT INTO public.rung VALUES (names)'"
    postgres_server.query(f"CREATE FUNCTION holdfast.notify(names text[]) {counting}", database=database)
    asyncio.run(scenario())


def test_waiters_outlive_a_restart(url: str, table: Table, postgres_server: PostgresServer) -> None:
    async def scenario() -> None:
        async with opened(url, deadline="30s") as database:
            for kill in (False, True):
                await database.wait([BELL], 100)
                (waiter,) = waiters_of(database)
                await table.until_waiting(1)
                await in_thread(lambda kill=kill: postgres_server.restart(kill=kill))
                await table.until_waiting(1)
                database.notify([BELL])
                assert await waiter is True

    asyncio.run(scenario())


def test_rings_are_not_wasted_on_the_dead(
    url: str, table: Table, postgres_server: PostgresServer, database: str
) -> None:
    async def scenario() -> None:
        async with opened(url) as link:
            await link.wait([BELL], 100)
            (waiter,) = waiters_of(link)
            await table.until_waiting(1)
            await in_thread(lambda: postgres_server.query(DEAD, database=database))
            link.notify([BELL])
            assert await waiter is True

    asyncio.run(scenario())


def test_the_dead_are_cleared_away(url: str, table: Table, postgres_server: PostgresServer, database: str) -> None:
    async def scenario() -> None:
        async with opened(url) as link:
            await link.wait(["another"], 100)
            await until(lambda: table.waiting() == 0, "they are gone")

        postgres_server.query(DEAD, database=database)

    asyncio.run(scenario())


def test_closed_database_waits_for_nothing(url: str, table: Table) -> None:
    async def scenario() -> None:
        async with opened(url) as database:
            await database.wait([BELL], 100)
            await table.until_waiting(1)
        assert await in_thread(table.waiting) == 0

    asyncio.run(scenario())


def test_last_ring_is_sent_when_the_loop_ends(url: str, table: Table) -> None:
    async def scenario() -> None:
        async with opened(url) as database:
            await database.call("levels")
            database.notify([BELL])

    asyncio.run(scenario())
    assert table.unheard() == {BELL}


def test_ring_may_be_the_first_thing_of_all(url: str, table: Table) -> None:
    async def scenario() -> None:
        async with opened(url) as database:
            database.notify([BELL])
            await until(lambda: table.unheard() == {BELL}, "it was rung")

    asyncio.run(scenario())


def test_idle_process_says_nothing(url: str, table: Table, postgres_server: PostgresServer, database: str) -> None:
    listening = "datname = %s AND query LIKE '%%attend%%' AND pid <> pg_backend_pid()"
    backend = f"SELECT state_change FROM pg_stat_activity WHERE {listening}"

    async def scenario() -> None:
        async with opened(url) as link:
            while not await in_thread(table.waiting):
                await link.wait([BELL], 100)
            before = await in_thread(postgres_server.query, backend, database)
            for _ in range(50):
                assert await link.wait([BELL], 5) is False
            assert await in_thread(postgres_server.query, backend, database) == before
            assert len(before) == 1

    asyncio.run(scenario())


def test_polling_needs_no_listener(url: str, table: Table) -> None:
    async def scenario() -> None:
        async with opened(url, listen="poll") as database:
            assert await database.wait([BELL], 20) is False
            async with asyncio.timeout(60):
                assert await database.wait([BELL], 600_000) is False
            assert await in_thread(table.waiting) == 0

    asyncio.run(scenario())
