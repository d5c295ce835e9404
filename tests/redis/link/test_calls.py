"""Calls on one server: scripts that the server forgot, lost replies, restarts, several event loops, forks, the end."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.stores.redis.link import Link
from holdfast.stores.redis.urls import parse_redis_url
from tests.redis.link.helpers import ALL_IDS, KEY, READ, RECORD, ids_in, linked, recording
from tests.servers.callers import in_thread, one_line, until
from tests.servers.proxy import FaultProxy, LineFaults
from tests.servers.redis_server import RedisServer
from tests.support import eventually


@pytest.mark.parametrize("protocol", [2, 3])
def test_bytes_text_and_numbers_arrive_as_they_are(any_server: RedisServer, protocol: int) -> None:
    async def scenario() -> None:
        async with linked(any_server.url, protocol=protocol) as link:
            values: dict[str, bytes | str | int] = {
                "bytes": b"\x00\xff\r\n",
                "text": "über",
                "number": 9007199254740993,
            }
            for name, value in values.items():
                assert await link.call(RECORD, KEY, [name, value]) == b"created"
            assert await link.call(READ, KEY, ["bytes"]) == b"\x00\xff\r\n"
            assert await link.call(READ, KEY, ["text"]) == "über".encode()
            assert await link.call(READ, KEY, ["number"]) == b"9007199254740993"
            assert await link.call(READ, KEY, ["nothing"]) is None

    asyncio.run(scenario())


def test_forgotten_script_is_sent_whole(any_server: RedisServer) -> None:
    async def scenario() -> None:
        async with linked(any_server.url) as link:
            assert await link.call(RECORD, KEY, ["a", "1"]) == b"created"
            any_server.command("SCRIPT", "FLUSH")
            assert await link.call(RECORD, KEY, ["b", "1"]) == b"created"
            assert any_server.command("SCRIPT", "EXISTS", RECORD.sha) == [1]

    asyncio.run(scenario())


def test_scripts_that_are_flushed_in_the_middle_of_a_pipeline_are_sent_whole(any_server: RedisServer) -> None:
    async def scenario() -> None:
        done = threading.Event()

        def flush() -> None:
            with any_server.client() as client:
                while not done.is_set():
                    client.script_flush()

        async with linked(any_server.url) as link:
            flushing = asyncio.create_task(in_thread(flush))
            try:
                for batch in range(50):
                    # Long enough that the server reads other connections in between.
                    calls = [[f"{batch}-{number}", "x" * 50_000] for number in range(20)]
                    assert set(await link.calls(RECORD, KEY, calls)) <= {b"created", b"known"}
            finally:
                done.set()
                await flushing
            assert len(await ids_in(link)) == 1_000

    asyncio.run(scenario())


def test_lost_replies_are_asked_for_again(redis_server: RedisServer) -> None:
    async def scenario(url: str, line: FaultProxy) -> None:
        async with linked(url) as link:
            callers = recording(link, safe=False)
            await callers.more(300)
            acknowledged = await callers.stop()
            assert callers.gave_up == 0
            assert await ids_in(link) >= acknowledged
        assert line.struck.dropped > 30

    with FaultProxy(redis_server.address, faults=LineFaults(drop_every=7, torn_share=0.5)) as line:
        asyncio.run(scenario(line.url_for(redis_server.url), line))


def test_connections_that_broke_while_idle_are_not_used(redis_server: RedisServer) -> None:
    async def scenario(url: str, line: FaultProxy) -> None:
        async with linked(url) as link:
            await asyncio.gather(*(link.call(RECORD, KEY, [f"{number}", "1"]) for number in range(20)))
            before = line.struck.requests
            assert await in_thread(line.cut) > 1
            assert await link.call(RECORD, KEY, ["after", "1"]) == b"created"
            # Told by the end of the old connections, not by a failure: HELLO, ROLE and the script, once each.
            assert line.struck.requests - before <= 4

    with FaultProxy(redis_server.address) as line:
        asyncio.run(scenario(line.url_for(redis_server.url), line))


def test_restart_goes_unnoticed(durable_server: RedisServer) -> None:
    async def scenario() -> None:
        async with linked(durable_server.url, deadline="30s") as link:
            callers = recording(link, safe=False)
            for kill in (False, True):
                await callers.more()
                await in_thread(lambda kill=kill: durable_server.restart(kill=kill))
                await callers.more()
            acknowledged = await callers.stop()
            assert callers.gave_up == 0
            assert await ids_in(link) >= acknowledged

    asyncio.run(scenario())


def test_frozen_server_is_given_up_after_the_deadline(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        async with linked(redis_server.url, deadline="400ms") as link:
            await link.call(RECORD, KEY, ["a", "1"])
            redis_server.freeze()
            with pytest.raises(StoreUnavailable) as caught:
                await link.call(RECORD, KEY, ["b", "1"])
            assert "no answer from" in one_line(caught.value)
            redis_server.thaw()
            await link.call(RECORD, KEY, ["b", "1"])

    asyncio.run(scenario())


def test_answer_that_takes_longer_than_the_deadline_is_waited_for_while_it_comes(redis_server: RedisServer) -> None:
    async def scenario(url: str, line: FaultProxy) -> None:
        async with linked(url, deadline="2s") as link:
            await link.call(RECORD, KEY, ["large", "x" * 3_000_000])
            before = line.struck.connections
            line.strike(LineFaults(bytes_per_second=1_000_000))
            assert len(await link.call(READ, KEY, ["large"])) == 3_000_000
            assert line.struck.connections == before  # a try that fails ends its connection

    with FaultProxy(redis_server.address) as line:
        asyncio.run(scenario(line.url_for(redis_server.url), line))


def test_answer_that_stops_halfway_is_given_up_after_the_deadline(redis_server: RedisServer) -> None:
    async def scenario(url: str, line: FaultProxy) -> None:
        async with linked(url, deadline="1s") as link:
            await link.call(RECORD, KEY, ["large", "x" * 3_000_000])
            line.strike(LineFaults(bytes_per_second=1_000_000))
            replies = line.struck.replies
            reading = asyncio.create_task(link.call(READ, KEY, ["large"]))
            # The server does not know the script by its hash yet.
            await until(lambda: line.struck.replies == replies + 2, "the answer is on its way")
            line.stall()
            with pytest.raises(StoreUnavailable, match="no answer"):
                await reading
            line.strike()
            line.flow()

    with FaultProxy(redis_server.address) as line:
        asyncio.run(scenario(line.url_for(redis_server.url), line))


def test_many_calls_share_few_connections(any_server: RedisServer) -> None:
    async def scenario() -> None:
        async with linked(any_server.url) as link:
            before = int(any_server.info("clients")["connected_clients"])
            await asyncio.gather(*(link.call(RECORD, KEY, [f"{number}", "1"]) for number in range(2_000)))
            assert len(await ids_in(link)) == 2_000
            assert int(any_server.info("clients")["connected_clients"]) - before <= 32

    asyncio.run(scenario())


def test_cancelled_call_leaves_no_reply_behind(redis_server: RedisServer) -> None:
    async def scenario(url: str, line: FaultProxy) -> None:
        async with linked(url) as link:
            await link.call(RECORD, KEY, ["mine", "1"])
            line.strike(LineFaults(longest_delay_ms=30))
            for number in range(20):
                call = asyncio.create_task(link.call(ALL_IDS, KEY, []))
                await asyncio.sleep(number / 1_000)
                call.cancel()
                assert await link.call(READ, KEY, ["mine"]) == b"1"
                await asyncio.gather(call, return_exceptions=True)

    with FaultProxy(redis_server.address) as line:
        asyncio.run(scenario(line.url_for(redis_server.url), line))


# -- event loops, threads, forks ------------------------------------------------------------------------------


def test_two_event_loops_at_once(any_server: RedisServer) -> None:
    link = Link(parse_redis_url(any_server.url))
    meet = threading.Barrier(2)
    failures: list[BaseException] = []

    async def calls(name: str) -> None:
        for number in range(200):
            if number % 50 == 0:
                await in_thread(meet.wait, 10)
            await link.call(RECORD, KEY, [f"{name}-{number}", "1"])

    def run(name: str) -> None:
        try:
            asyncio.run(calls(name))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures

    async def look() -> None:
        assert len(await ids_in(link)) == 400
        await link.close()

    asyncio.run(look())


def test_connections_end_with_their_event_loop(any_server: RedisServer) -> None:
    link = Link(parse_redis_url(any_server.url))

    async def call() -> None:
        await link.call(RECORD, KEY, ["a", "1"])
        await link.pop([f"{KEY}:bell"], 1)

    for _ in range(5):
        asyncio.run(call())  # Nobody closes the link: a warning about an open connection would fail this test.
        gc.collect()
    eventually(lambda: _clients(any_server) == 1, what="only the test's own connection is left")


def test_closing_ends_the_connections_of_other_loops(any_server: RedisServer) -> None:
    link = Link(parse_redis_url(any_server.url))
    called, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def call_and_stay() -> None:
        loops.append(asyncio.get_running_loop())
        await link.call(RECORD, KEY, ["a", "1"])
        called.set()
        await stop.wait()

    async def close() -> None:
        await link.call(RECORD, KEY, ["b", "1"])
        await link.close()

    thread = threading.Thread(target=asyncio.run, args=(call_and_stay(),))
    thread.start()
    assert called.wait(10)
    asyncio.run(close())
    eventually(lambda: _clients(any_server) == 1, what="all connections of the link are closed")
    loops[0].call_soon_threadsafe(stop.set)
    thread.join(10)


def test_forked_child_opens_connections_of_its_own(any_server: RedisServer) -> None:
    link = Link(parse_redis_url(any_server.url))
    fork = multiprocessing.get_context("fork")

    def in_child(pipe: Connection) -> None:
        async def call() -> None:
            for number in range(100):
                await link.call(RECORD, KEY, [f"child-{number}", "1"])
            await link.close()

        asyncio.run(call())
        pipe.send(os.getpid())

    async def scenario() -> None:
        await link.call(RECORD, KEY, ["parent-first", "1"])
        here, there = fork.Pipe()
        child = fork.Process(target=_in_thread_without_loop(in_child), args=(there,))
        child.start()
        for number in range(100):
            assert await link.call(RECORD, KEY, [f"parent-{number}", "1"]) == b"created"
        assert await in_thread(here.poll, 30)
        assert here.recv() == child.pid
        await in_thread(child.join, 10)
        # The child closed its link; what the parent has is untouched.
        assert await link.call(RECORD, KEY, ["parent-last", "1"]) == b"created"
        assert len(await ids_in(link)) == 202
        await link.close()

    asyncio.run(scenario())


def _in_thread_without_loop(function: Callable[[Connection], None]) -> Callable[[Connection], None]:
    """A forked child still counts the parent's event loop as running in this thread; a fresh thread does not."""

    def run(pipe: Connection) -> None:
        thread = threading.Thread(target=function, args=(pipe,))
        thread.start()
        thread.join()

    return run


def _clients(server: RedisServer) -> int:
    return int(server.info("clients")["connected_clients"])


# -- the end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["connecting", "between two tries"])
def test_closing_waits_for_calls_under_way(redis_server: RedisServer, moment: str) -> None:
    async def scenario(url: str, line: FaultProxy) -> None:
        async with linked(url) as link:
            if moment == "connecting":
                line.stall()
            calls = [asyncio.create_task(link.call(RECORD, KEY, [f"{number}", "1"])) for number in range(10)]
            if moment == "connecting":
                await until(lambda: line.struck.connections > 0, "somebody connects")
            else:
                # The server does not know the script yet: each call is sent a second time, with the whole text.
                await until(lambda: line.struck.replies > 0, "a first answer came")
            closing = asyncio.create_task(link.close())
            line.flow()
            await closing
            assert await asyncio.gather(*calls) == [b"created"] * 10

    with FaultProxy(redis_server.address, faults=LineFaults(longest_delay_ms=50)) as line:
        redis_server.command("SCRIPT", "FLUSH")
        asyncio.run(scenario(line.url_for(redis_server.url), line))


def test_closed_link_says_so(any_server: RedisServer) -> None:
    async def scenario() -> None:
        async with linked(any_server.url) as link:
            await link.call(RECORD, KEY, ["a", "1"])
            await link.close()
            with pytest.raises(StoreUnavailable, match="the store is closed"):
                await link.call(RECORD, KEY, ["b", "1"])

    asyncio.run(scenario())
