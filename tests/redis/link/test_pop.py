"""Waiting for a bell: one waiter a ring, beside the calls, through restarts, and never longer than asked for."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import BadUrl
from tests.redis.link.helpers import KEY, RECORD, linked
from tests.servers.callers import in_thread, until
from tests.servers.loopback import HOST
from tests.servers.redis_server import RedisServer
from tests.servers.replicas import Replicas

BELL = f"{KEY}:bell"


def test_nothing_rings(any_server: RedisServer) -> None:
    async def scenario() -> None:
        async with linked(any_server.url) as link:
            assert await link.pop([BELL], 20) is False
            assert await link.pop([BELL], 0) is False

    asyncio.run(scenario())


def test_one_ring_wakes_one_waiter(any_server: RedisServer) -> None:
    async def scenario() -> None:
        async with linked(any_server.url) as link:
            waiters = [asyncio.create_task(link.pop([f"{KEY}:other", BELL], 20_000)) for _ in range(100)]
            await _until_blocked(any_server, 100)
            # While all of them wait, calls go on.
            assert await link.call(RECORD, KEY, ["a", "1"]) == b"created"
            any_server.command("RPUSH", BELL, "1")
            done, waiting = await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result() for task in done] == [True]
            assert any_server.command("LLEN", BELL) == 0
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await _until_blocked(any_server, 0)

    asyncio.run(scenario())


def test_cancelled_waiter_takes_no_ring(any_server: RedisServer) -> None:
    async def scenario() -> None:
        async with linked(any_server.url) as link:
            waiter = asyncio.create_task(link.pop([BELL], 20_000))
            await _until_blocked(any_server, 1)
            waiter.cancel()
            await asyncio.gather(waiter, return_exceptions=True)
            await _until_blocked(any_server, 0)
            any_server.command("RPUSH", BELL, "1")
            assert await link.pop([BELL], 20_000) is True

    asyncio.run(scenario())


def test_waiter_outlives_a_restart(durable_server: RedisServer) -> None:
    async def scenario() -> None:
        async with linked(durable_server.url) as link:
            waiter = asyncio.create_task(link.pop([BELL], 60_000))
            await _until_blocked(durable_server, 1)
            await in_thread(lambda: durable_server.restart(kill=True))
            await _until_blocked(durable_server, 1)
            durable_server.command("RPUSH", BELL, "1")
            assert await waiter is True

    asyncio.run(scenario())


def test_waiter_on_a_master_that_is_demoted_goes_on_waiting() -> None:
    async def scenario(servers: Replicas) -> None:
        master, replica = servers.master, servers.replicas[0]
        async with linked(master.url) as link:
            waiter = asyncio.create_task(link.pop([BELL], 60_000))
            await _until_blocked(master, 1)
            replica.command("REPLICAOF", "NO", "ONE")
            master.command("REPLICAOF", HOST, replica.port)
            await _until_blocked(master, 0)
            master.command("REPLICAOF", "NO", "ONE")
            await _until_blocked(master, 1)
            master.command("RPUSH", BELL, "1")
            assert await waiter is True

    with Replicas(profile={"save": ""}) as servers:
        asyncio.run(scenario(servers))


def test_server_that_is_gone_is_no_ring(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        async with linked(redis_server.url) as link:
            assert await link.pop([BELL], 1) is False
            redis_server.kill()
            assert await link.pop([BELL], 200) is False

    asyncio.run(scenario())


def test_what_no_waiting_mends_is_an_error() -> None:
    async def scenario(port: int) -> None:
        async with linked(f"redis://:wrong@{HOST}:{port}") as link:
            with pytest.raises(BadUrl):
                await link.pop([BELL], 20_000)

    with RedisServer(password="right") as server:
        asyncio.run(scenario(server.port))


def test_closing_ends_the_waiting(any_server: RedisServer) -> None:
    async def scenario() -> None:
        async with linked(any_server.url) as link:
            waiter = asyncio.create_task(link.pop([BELL], 60_000))
            await _until_blocked(any_server, 1)
            await link.close()
            await asyncio.gather(waiter, return_exceptions=True)

    asyncio.run(scenario())


async def _until_blocked(server: RedisServer, number: int) -> None:
    await until(lambda: _blocked(server) == number, f"{number} clients wait")


def _blocked(server: RedisServer) -> int:
    return int(server.info("clients")["blocked_clients"]) if server.answers() else -1
