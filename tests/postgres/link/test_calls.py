"""Calls on one server: lost replies, restarts, several event loops, forks, cancelled callers, the end."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import psycopg
import pytest

from holdfast.clock import SystemClock
from holdfast.errors import StoreUnavailable
from holdfast.stores.connections import Deadline
from holdfast.stores.postgres.calls import Calls, Database
from holdfast.stores.postgres.errors import NotMigrated
from holdfast.stores.postgres.urls import parse_postgres_url
from tests.postgres.link.helpers import Wire, ids_in, make_schema, opened, recording
from tests.servers.callers import in_thread, one_line, until
from tests.servers.loopback import HOST
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_wire import PostgresWire
from tests.servers.proxy import FaultProxy, LineFaults

OURS = "application_name = 'holdfast'"


@pytest.mark.parametrize("prepare", ["on", "off"])
def test_arguments_and_rows_arrive_as_they_are(url: str, prepare: str) -> None:
    async def scenario() -> None:
        async with opened(url, prepare=prepare) as database:
            for _ in range(10):
                rows = await database.call("echo", ["über", None], [9007199254740993, -1], [b"\x00\xff", None], True)
                assert rows == [("über", 9007199254740993, b"\x00\xff", True), (None, -1, None, True)]
                assert await database.call("echo", [], [], [], None) == []
            assert await database.call("record", "a", b"1") == [("created",)]
            assert await database.call("record", "a", b"1") == [("known",)]

    asyncio.run(scenario())


def test_each_schema_is_a_world_of_its_own(url: str) -> None:
    async def scenario() -> None:
        async with opened(url) as database:
            await database.call("record", "a", b"")
            async with opened(url, schema="other") as other:
                with pytest.raises(NotMigrated, match="run: holdfast migrate"):
                    await other.call("levels")
            make_schema(url, "third")
            async with opened(url, schema="third") as third:
                assert await ids_in(third) == set()

    asyncio.run(scenario())


def test_lost_replies_are_asked_for_again(url: str, postgres_server: PostgresServer) -> None:
    async def scenario(url: str, wire: Wire) -> None:
        async with opened(url) as database:
            callers = recording(database)
            await callers.more(300)
            acknowledged = await callers.stop()
            assert callers.gave_up == 0
            assert await ids_in(database) >= acknowledged
        assert wire.dropped > 30

    with Wire(postgres_server.address, drop_every=7) as wire:
        asyncio.run(scenario(wire.url_for(url, postgres_server.port), wire))


def test_connections_that_broke_while_idle_are_not_used(url: str, postgres_server: PostgresServer) -> None:
    async def scenario(url: str, wire: Wire) -> None:
        async with opened(url) as database:
            await asyncio.gather(*(database.call("record", f"{number}", b"") for number in range(20)))
            before = wire.answers
            assert await in_thread(wire.cut) > 1
            assert await database.call("record", "after", b"") == [("created",)]
            # Told by the end of the old connections, not by a failure: a greeting and the call, once each.
            assert wire.answers - before == 2

    with Wire(postgres_server.address) as wire:
        asyncio.run(scenario(wire.url_for(url, postgres_server.port), wire))


def test_restart_goes_unnoticed(durable_postgres: PostgresServer, durable_database_url: str) -> None:
    async def scenario() -> None:
        async with opened(durable_database_url, deadline="60s") as database:
            callers = recording(database)
            for kill in (False, True):
                await callers.more()
                await in_thread(lambda kill=kill: durable_postgres.restart(kill=kill))
                await callers.more()
            acknowledged = await callers.stop()
            assert callers.gave_up == 0
            assert await ids_in(database) >= acknowledged

    make_schema(durable_database_url)
    asyncio.run(scenario())


def test_terminated_backends_go_unnoticed(url: str, postgres_server: PostgresServer, database: str) -> None:
    async def scenario() -> None:
        async with opened(url) as link:
            callers = recording(link)
            for _ in range(5):
                await callers.more(20)
                assert await in_thread(postgres_server.terminate_backends, f"{OURS} AND datname = '{database}'")
            acknowledged = await callers.stop()
            assert callers.gave_up == 0
            assert await ids_in(link) >= acknowledged

    asyncio.run(scenario())


def test_cancelled_statements_go_unnoticed(url: str, postgres_server: PostgresServer, database: str) -> None:
    cancel = f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE {OURS} AND datname = %s AND state = 'active'"

    async def scenario() -> None:
        async with opened(url) as link:
            resting = asyncio.create_task(link.call("rest", 1.0))
            await until(lambda: postgres_server.query(cancel, database), "a statement to cancel")
            assert await resting == [(True,)]

    asyncio.run(scenario())


def test_frozen_server_is_given_up_after_the_deadline(url: str, postgres_server: PostgresServer) -> None:
    async def scenario() -> None:
        async with opened(url, deadline="400ms") as database:
            await database.call("record", "a", b"")
            postgres_server.freeze()
            with pytest.raises(StoreUnavailable) as caught:
                await database.call("record", "b", b"")
            assert "no answer" in one_line(caught.value)
            postgres_server.thaw()
        async with opened(url) as database:
            await database.call("record", "b", b"")

    asyncio.run(scenario())


def test_waiting_for_a_slot_counts_within_the_deadline(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Deadline] = []

    class Noted(Deadline):
        def __init__(self, limit_ms: int) -> None:
            super().__init__(limit_ms)
            begun.append(self)

    async def scenario() -> None:
        async with opened(url, connections=2) as database:  # one of them for calls that may wait for a lock
            await database.call("record", "a", b"")
            monkeypatch.setattr("holdfast.stores.postgres.calls.Deadline", Noted)
            session = await database._sessions.get()
            async with session.lockers:
                call = asyncio.create_task(database.call("record", "b", b"", may_lock=True))
                await until(lambda: session.lockers._waiters, "a call that waits for the slot")
                assert len(begun) == 1
            assert await call == [("created",)]
            assert len(begun) == 1

    asyncio.run(scenario())


def test_the_first_call_has_one_deadline_with_the_look_at_the_schema(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    begin = Deadline.__init__

    def noted(self: Deadline, limit_ms: int) -> None:
        begun.append(limit_ms)
        begin(self, limit_ms)

    async def scenario() -> None:
        async with opened(url, schema="fresh") as database:
            await Calls(database, SystemClock()).migrate(dry_run=False)
        async with opened(url, schema="fresh") as database:
            monkeypatch.setattr(Deadline, "__init__", noted)
            await Calls(database, SystemClock())("all_workers", None)
            assert len(begun) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("level", ["local", "replicated"])
def test_answer_that_takes_longer_than_the_deadline_is_waited_for_while_it_comes(
    url: str, postgres_server: PostgresServer, level: str, safe: bool
) -> None:
    async def scenario(url: str, line: FaultProxy) -> None:
        async with opened(url, deadline="2s", durability=level) as database:
            await database.call("echo", ["a"], [1], [b""], True, safe=safe)
            before = line.struck.connections
            line.strike(LineFaults(bytes_per_second=1_000_000))
            rows = await database.call("repeat_bytes", 3_000_000, safe=safe)
            assert len(rows[0][0]) == 3_000_000
            assert line.struck.connections == before  # a try that fails ends its connection

    postgres_server.query(
        "CREATE FUNCTION holdfast.repeat_bytes(size integer) RETURNS TABLE (answer bytea) LANGUAGE sql AS "
        "$$SELECT convert_to(repeat('x', size), 'UTF8')$$",
        database=url.rpartition("/")[2].partition("?")[0],
    )
    with FaultProxy((HOST, postgres_server.port), wire=PostgresWire) as line:
        asyncio.run(scenario(line.url_for(url), line))


def test_many_calls_share_few_connections(url: str, postgres_server: PostgresServer, database: str) -> None:
    connections = f"SELECT count(*) FROM pg_stat_activity WHERE {OURS} AND datname = %s"

    async def scenario() -> None:
        async with opened(url, connections=5, deadline="60s") as link:
            await asyncio.gather(*(link.call("record", f"{number}", b"") for number in range(500)))
            assert len(await ids_in(link)) == 500
            assert await in_thread(postgres_server.value, connections, database) == 5

    asyncio.run(scenario())


def test_cancelled_caller_sends_no_cancel_request(url: str, postgres_server: PostgresServer, database: str) -> None:
    resting = f"SELECT count(*) FROM pg_stat_activity WHERE {OURS} AND datname = %s AND wait_event = 'PgSleep'"

    async def scenario(url: str, wire: Wire) -> None:
        async with opened(url) as link:
            call = asyncio.create_task(link.call("rest", 30.0))
            await until(lambda: postgres_server.value(resting, database) == 1, "the statement runs")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            # The next call has a connection of its own, and nobody asked the server to stop.
            assert await link.call("record", "a", b"") == [("created",)]
            assert await in_thread(postgres_server.value, resting, database) == 1
        assert wire.cancel_requests == 0

    with Wire(postgres_server.address) as wire:
        asyncio.run(scenario(wire.url_for(url, postgres_server.port), wire))


def test_statement_cannot_time_out_in_the_server(url: str, database: str, postgres_server: PostgresServer) -> None:
    postgres_server.query(f"ALTER DATABASE {database} SET statement_timeout = '50ms'")

    async def scenario() -> None:
        async with opened(url) as database:
            assert await database.call("rest", 0.2) == [(True,)]

    asyncio.run(scenario())


# -- transactions -------------------------------------------------------------------------------------------


def test_work_is_done_whole_and_again_if_it_must_be(url: str) -> None:
    tries = 0

    async def work(connection: psycopg.AsyncConnection[Any]) -> int:
        nonlocal tries
        tries += 1
        await connection.execute("INSERT INTO holdfast.recorded (id) VALUES (%s)", (f"try {tries}",))
        if tries == 1:
            await connection.execute("SELECT holdfast.refuse('40001')")
        return tries

    async def scenario() -> None:
        async with opened(url) as database:
            assert await database.run(work) == 2
            assert await ids_in(database) == {"try 2"}

    asyncio.run(scenario())


def test_transaction_is_done_once_or_not_at_all(url: str) -> None:
    async def fail(database: Database) -> None:
        async with database.transaction() as connection:
            await connection.execute("INSERT INTO holdfast.recorded (id) VALUES ('rolled back')")
            raise ZeroDivisionError

    async def scenario() -> None:
        async with opened(url) as database:
            async with database.transaction() as connection:
                await connection.execute("INSERT INTO holdfast.recorded (id) VALUES ('kept')")
            with pytest.raises(ZeroDivisionError):
                await fail(database)
            with pytest.raises(psycopg.errors.SerializationFailure):
                async with database.transaction() as connection:
                    await connection.execute("SELECT holdfast.refuse('40001')")
            assert await ids_in(database) == {"kept"}

    asyncio.run(scenario())


def test_cancelled_transaction_is_rolled_back_without_a_cancel_request(
    url: str, postgres_server: PostgresServer
) -> None:
    async def scenario(url: str, wire: Wire) -> None:
        async with opened(url) as database:
            begun = asyncio.Event()

            async def change() -> None:
                async with database.transaction() as connection:
                    await connection.execute("INSERT INTO holdfast.recorded (id) VALUES ('half')")
                    begun.set()
                    await connection.execute("SELECT pg_sleep(0.5)")

            changing = asyncio.create_task(change())
            await begun.wait()
            await asyncio.sleep(0)
            changing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await changing
            assert await ids_in(database) == set()
        assert wire.cancel_requests == 0

    with Wire(postgres_server.address) as wire:
        asyncio.run(scenario(wire.url_for(url, postgres_server.port), wire))


# -- event loops, processes, the end ------------------------------------------------------------------------


def test_several_event_loops_at_once(url: str) -> None:
    database = Database(parse_postgres_url(url))
    failed: list[BaseException] = []

    def in_a_loop(number: int) -> None:
        async def scenario() -> None:
            for step in range(20):
                assert await database.call("record", f"{number}-{step}", b"") == [("created",)]

        try:
            asyncio.run(scenario())
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=in_a_loop, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []

    async def at_the_end() -> None:
        assert len(await ids_in(database)) == 80
        await database.close()

    asyncio.run(at_the_end())


def test_loop_after_loop_leaves_no_connections(url: str, postgres_server: PostgresServer, database: str) -> None:
    link = Database(parse_postgres_url(url))

    async def scenario(number: int) -> None:
        await link.call("record", f"{number}", b"")
        link.notify(["default"])
        if number % 2:
            await link.wait(["default"], 1)

    for number in range(5):
        asyncio.run(scenario(number))
    gc.collect()
    count = f"SELECT count(*) FROM pg_stat_activity WHERE {OURS} AND datname = '{database}'"
    asyncio.run(until(lambda: postgres_server.value(count) == 0, "all connections are closed"))


def _child(database: Any, answers: Connection) -> None:
    async def scenario() -> None:
        answers.send(await database.call("record", f"child {os.getpid()}", b""))

    asyncio.run(scenario())
    answers.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_makes_connections_of_its_own(url: str) -> None:
    async def scenario() -> None:
        async with opened(url) as database:
            assert await database.call("record", "parent", b"") == [("created",)]
            await database.wait(["default"], 1)
            context = multiprocessing.get_context("fork")
            for _ in range(3):
                ours, theirs = context.Pipe()
                child = context.Process(target=_in_a_thread, args=(database, theirs))
                child.start()
                assert await in_thread(ours.recv) == [("created",)]
                await in_thread(child.join)
                assert child.exitcode == 0
                assert await database.call("record", "parent", b"") == [("known",)]
            backends = {backend for (backend,) in await database.run(_backends)}
            assert len(backends) == 4

    async def _backends(connection: psycopg.AsyncConnection[Any]) -> list[tuple[Any, ...]]:
        return await (await connection.execute("SELECT DISTINCT backend FROM holdfast.recorded")).fetchall()

    asyncio.run(scenario())


def _in_a_thread(database: Any, answers: Connection) -> None:
    # The forked process begins inside the event loop of its parent; a thread has none.
    thread = threading.Thread(target=_child, args=(database, answers))
    thread.start()
    thread.join()


def test_closed_database_says_so(url: str) -> None:
    async def scenario() -> None:
        async with opened(url) as database:
            await database.call("record", "a", b"")
        with pytest.raises(StoreUnavailable, match="the store is closed"):
            await database.call("record", "b", b"")
        with pytest.raises(StoreUnavailable, match="the store is closed"):
            await database.wait(["default"], 1)
        database.notify(["default"])

    asyncio.run(scenario())


def test_close_lets_calls_finish(url: str, postgres_server: PostgresServer) -> None:
    running: Callable[[], object] = lambda: postgres_server.query(  # noqa: E731
        f"SELECT 1 FROM pg_stat_activity WHERE {OURS} AND wait_event = 'PgSleep'"
    )

    async def scenario() -> None:
        async with opened(url) as database:
            call = asyncio.create_task(database.call("rest", 0.5))
            await until(running, "the call runs")
        assert await call == [(True,)]

    asyncio.run(scenario())
