"""Commits whose answer does not come, and runs that are told to end while they commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import psycopg
import pytest

from holdfast import current
from holdfast.clock import SystemClock
from holdfast.core.lifecycle import Change, Event
from holdfast.core.task import State
from holdfast.worker.child.run import Ending, Run
from holdfast.worker.child.slots import Slots
from tests.postgres.transactions.completion.desk import WRITE, Desk, desk, succeeded
from tests.servers.loopback import HOST
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_wire import PostgresWire
from tests.servers.proxy import FaultProxy, LineFaults
from tests.support import eventually

#: A commit that has to wait for whoever holds the lock 7; by then the ack has been made.
SLOW_COMMIT = """
CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER dawdles AFTER INSERT ON written DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION dawdle();
"""
WAITING = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
OPEN = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"


async def writes() -> None:
    async with current().transaction() as conn:
        await conn.execute(WRITE, (current().task_id, "kept"))


def writes_in_thread() -> None:
    with current().transaction() as conn:
        conn.execute(WRITE, (current().task_id, "kept"))


@contextmanager
def proxied(server: PostgresServer, faults: LineFaults | None = None) -> Iterator[FaultProxy]:
    with FaultProxy((HOST, server.port), faults=faults, wire=PostgresWire) as proxy:
        yield proxy


@contextmanager
def dawdling(server: PostgresServer, database: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """As long as the connection is open, commits of what was written do not come to their end."""
    with server.connect(database) as holder:
        holder.execute("SELECT pg_advisory_lock(7)")
        yield holder


@asynccontextmanager
async def committing(it: Desk, run: Run) -> AsyncIterator[asyncio.Task[Change | None]]:
    """The run, while the server carries out its commit."""
    it.query(SLOW_COMMIT)
    performing = asyncio.create_task(it.perform(run))
    await asyncio.to_thread(eventually, lambda: it.query(WAITING))
    yield performing
    await asyncio.wait([performing])


# -- the answer is lost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [writes, writes_in_thread])
@pytest.mark.parametrize("torn", [0.0, 1.0])
def test_a_lost_answer_to_a_commit_is_found_out(
    postgres_server: PostgresServer, database: str, function: object, torn: float
) -> None:
    url = postgres_server.url(database)

    async def scenario(proxy: FaultProxy) -> None:
        async with desk(url, through=proxy.url_for(url)) as it:
            for _ in range(3):
                assert succeeded(*await it.done(function))  # type: ignore[arg-type]
            assert it.notes() == ["kept"] * 3
            assert proxy.struck.dropped_by_command == {"complete": 3}

    faults = LineFaults(drop_every=1, torn_share=torn, commands=frozenset({"complete"}))
    with proxied(postgres_server, faults) as proxy:
        asyncio.run(scenario(proxy))


@pytest.mark.parametrize("function", [writes, writes_in_thread])
def test_a_commit_that_did_not_arrive_is_told_as_such(
    postgres_server: PostgresServer, database: str, function: object
) -> None:
    url = postgres_server.url(database)

    async def scenario(proxy: FaultProxy) -> None:
        async with desk(url, through=proxy.url_for(url)) as it:

            async def writes_before_the_line_dies() -> None:
                async with current().transaction() as conn:
                    await conn.execute(WRITE, (current().task_id, "never"))
                    proxy.stall()

            def writes_in_thread_before_the_line_dies() -> None:
                with current().transaction() as conn:
                    conn.execute(WRITE, (current().task_id, "never"))
                    proxy.stall()

            run = await it.run_of(
                writes_before_the_line_dies if function is writes else writes_in_thread_before_the_line_dies
            )
            performing = asyncio.create_task(it.perform(run))
            await asyncio.to_thread(eventually, lambda: run.transaction is not None and run.transaction.decides)
            proxy.cut()
            proxy.flow()
            change = await performing
            assert change is not None
            assert change.event is Event.RETRY
            assert change.error is not None
            assert change.error.message.endswith("; nothing was committed")
            assert await it.is_claimed(run)
            assert it.notes() == []

    with proxied(postgres_server) as proxy:
        asyncio.run(scenario(proxy))


def test_a_commit_that_is_still_under_way_is_waited_for(postgres_server: PostgresServer, database: str) -> None:
    """To look while the server still commits would show the claim as current."""
    url = postgres_server.url(database)

    async def scenario(proxy: FaultProxy) -> None:
        async with desk(url, through=proxy.url_for(url)) as it:
            run = await it.run_of(writes)
            with dawdling(postgres_server, database) as holder:
                async with committing(it, run) as performing:
                    proxy.cut()
                    asks = (
                        "SELECT pid FROM pg_stat_activity WHERE query LIKE '%outcome_of%' AND wait_event_type = 'Lock'"
                    )
                    await asyncio.to_thread(eventually, lambda: it.query(asks))
                    holder.close()
                assert performing.result() is None
            assert (await it.task(run)).state is State.SUCCEEDED
            assert it.notes() == ["kept"]

    with proxied(postgres_server) as proxy:
        asyncio.run(scenario(proxy))


def test_a_server_that_crashes_in_the_commit_has_committed_nothing(
    durable_postgres: PostgresServer, durable_database: str
) -> None:
    async def scenario() -> None:
        async with desk(durable_postgres.url(durable_database)) as it:
            run = await it.run_of(writes)
            with dawdling(durable_postgres, durable_database):
                async with committing(it, run) as performing:
                    durable_postgres.restart(kill=True)
            change = performing.result()
            assert change is not None
            assert change.error is not None
            assert change.error.message.endswith("; nothing was committed")
            assert await it.is_claimed(run)
            assert it.notes() == []

    asyncio.run(scenario())


def test_what_nobody_could_find_out_is_settled_by_the_store(postgres_server: PostgresServer, database: str) -> None:
    """The commit has happened, the server is away until the lease is over: the failure of the run is refused."""
    url = postgres_server.url(database)

    async def scenario(proxy: FaultProxy) -> None:
        async with desk(url, through=f"{proxy.url_for(url)}?deadline=300ms") as it:

            async def writes_before_the_server_goes() -> None:
                async with current().transaction() as conn:
                    await conn.execute(WRITE, (current().task_id, "kept"))
                    proxy.strike(LineFaults(drop_every=1, commands=frozenset({"complete"})))
                    proxy.refuse()

            run = await it.run_of(writes_before_the_server_goes)
            run.lease_ends_ms = SystemClock().monotonic_ms()
            change = await it.perform(run)
            assert change is not None
            assert change.error is not None
            assert change.error.type.endswith("StoreUnavailable")
            proxy.strike()
            proxy.accept()
            (verdict,) = await it.store.apply([change])
            assert not verdict.applied
            assert (await it.task(run)).state is State.SUCCEEDED
            assert it.notes() == ["kept"]

    with proxied(postgres_server) as proxy:
        asyncio.run(scenario(proxy))


# -- the run is told to end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [Ending.SHUTDOWN, Ending.CANCELLED])
def test_a_cancellation_does_not_break_off_a_commit(
    postgres_server: PostgresServer, database: str, ending: Ending
) -> None:
    async def scenario() -> None:
        async with desk(postgres_server.url(database)) as it:
            run = await it.run_of(writes)
            with dawdling(postgres_server, database) as holder:
                async with committing(it, run) as performing:
                    run.end(ending)
                    await asyncio.sleep(0)
                    assert run.handle is not None
                    assert not run.handle.done()
                    run.handle.cancel()  # and again, as whoever loses patience does
                    await asyncio.sleep(0)
                    holder.close()
                assert performing.result() is None
            assert (await it.task(run)).state is State.SUCCEEDED
            assert it.notes() == ["kept"]

    asyncio.run(scenario())


def test_a_heartbeat_that_finds_the_claim_gone_does_not_end_what_ended_it(
    postgres_server: PostgresServer, database: str
) -> None:
    went_on: list[str] = []

    async def scenario() -> None:
        slots = Slots(asyncio.get_running_loop(), 1)

        async def writes_and_goes_on() -> None:
            await writes()
            assert slots.end([1], Ending.LOST) == []
            await asyncio.sleep(0)
            went_on.append(current().task_id)

        async with desk(postgres_server.url(database)) as it:
            run = slots.running[1] = await it.run_of(writes_and_goes_on)
            with dawdling(postgres_server, database) as holder:
                async with committing(it, run) as performing:
                    assert slots.end([1], Ending.LOST) == []
                    holder.close()
                assert performing.result() is None
            assert went_on == [run.task.task_id]
            assert (await it.task(run)).state is State.SUCCEEDED

    asyncio.run(scenario())


@pytest.mark.parametrize("statement", ["SELECT pg_sleep(60)", ""])
def test_a_cancellation_inside_the_block_rolls_back(
    postgres_server: PostgresServer, database: str, statement: str
) -> None:
    async def scenario() -> None:
        inside = asyncio.Event()

        async def rests() -> None:
            async with current().transaction() as conn:
                await conn.execute(WRITE, (current().task_id, "never"))
                inside.set()
                if statement:
                    await conn.execute(statement)
                await asyncio.Event().wait()

        async with desk(postgres_server.url(database)) as it:
            run = await it.run_of(rests)
            performing = asyncio.create_task(it.perform(run))
            await inside.wait()
            run.end(Ending.CANCELLED)
            change = await performing
            assert change is not None
            assert change.event is Event.STOP
            await asyncio.to_thread(eventually, lambda: not it.query(OPEN))
            assert it.notes() == []
            assert succeeded(*await it.done(writes))  # the room that it took is free again

    asyncio.run(scenario())


# -- a standby has to confirm ---------------------------------------------------------------------------------


def test_a_wait_for_a_standby_that_was_broken_off_is_not_yet_a_success(
    postgres_server: PostgresServer, database: str
) -> None:
    """The server says that it has committed; nobody else has it. The block ends when somebody has."""
    url = postgres_server.url(database)
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%{}%'"

    async def scenario() -> None:
        async with desk(url, through=f"{url}?durability=replicated&deadline=20s") as it:
            run = await it.run_of(writes)
            postgres_server.alter(synchronous_standby_names="nobody")
            performing = asyncio.create_task(it.perform(run))
            ((backend,),) = await asyncio.to_thread(eventually, lambda: it.query(waits.format("complete")))
            postgres_server.query("SELECT pg_cancel_backend(%s)", backend)
            await asyncio.to_thread(eventually, lambda: it.query(waits.format("outcome_of")))
            assert not performing.done()
            postgres_server.alter(synchronous_standby_names="")
            assert await performing is None
            assert (await it.task(run)).state is State.SUCCEEDED
            assert it.notes() == ["kept"]

    asyncio.run(scenario())


def test_a_standby_that_does_not_confirm_in_time_is_no_success(postgres_server: PostgresServer, database: str) -> None:
    url = postgres_server.url(database)

    async def scenario() -> None:
        async with desk(url, through=f"{url}?durability=replicated&deadline=300ms") as it:
            run = await it.run_of(writes)
            run.lease_ends_ms = SystemClock().monotonic_ms()
            postgres_server.alter(synchronous_standby_names="nobody")
            change = await it.perform(run)
            postgres_server.alter(synchronous_standby_names="")
            assert change is not None
            assert change.error is not None
            assert change.error.type.endswith("DurabilityUnknown")

    asyncio.run(scenario())
