"""A sync `enqueue` talks to the server in the caller's own thread; what goes wrong there loses and doubles nothing."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Iterator
from itertools import count

import hiredis
import pytest

from holdfast import Holdfast
from holdfast.core.task import NewTask, State
from holdfast.errors import DurabilityUnknown
from holdfast.stores.redis.connection import Command, SyncSocket
from holdfast.stores.redis.store import RedisStore
from tests.servers.proxy import FaultProxy, LineFaults
from tests.servers.redis_server import RedisServer


class Producer:
    """An app with one task type, and what its store says of it."""

    def __init__(self, url: str) -> None:
        self.app = Holdfast(url)
        self._type = self.app.task(name="t")(_square)

    def enqueue(self, number: int) -> str:
        """The id of a new task."""
        return self._type.enqueue(number).task_id

    def waiting(self) -> int:
        """How many tasks there are."""

        async def counts() -> int:
            (counts,) = await self.app.store.counts()
            return counts.states[State.READY]

        return asyncio.run(counts())


def _square(number: int) -> int:
    return number * number


@pytest.fixture
def producer(redis_server: RedisServer) -> Iterator[Producer]:
    producer = Producer(redis_server.url)
    yield producer
    producer.app.close()


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tasks went the long way, call by call."""
    calls: list[int] = []
    whole = RedisStore.enqueue

    async def noted(self: RedisStore, tasks: list[object], *, map_version: int = 0) -> object:
        calls.append(len(tasks))
        return await whole(self, tasks, map_version=map_version)  # type: ignore[arg-type]

    monkeypatch.setattr(RedisStore, "enqueue", noted)
    return calls


def test_only_the_first_call_goes_the_long_way(producer: Producer, long_way: list[int]) -> None:
    ids = {producer.enqueue(number) for number in range(20)}
    assert long_way == [1]
    assert producer.waiting() == len(ids) == 20


def test_many_threads_at_once_record_each_task_once(producer: Producer) -> None:
    producer.enqueue(0)
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: ids.extend(producer.enqueue(number) for number in range(50))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert producer.waiting() == len(set(ids)) + 1 == 401


def test_a_lost_reply_makes_no_second_task(redis_server: RedisServer, long_way: list[int]) -> None:
    with FaultProxy(redis_server.address, faults=LineFaults(drop_every=5, commands=frozenset({"EVALSHA"}))) as proxy:
        producer = Producer(proxy.url_for(redis_server.url))
        ids = {producer.enqueue(number) for number in range(40)}
        assert proxy.struck.dropped > 5
        assert len(long_way) > 5
        producer.app.close()
    with Holdfast(redis_server.url) as app:
        (counts,) = asyncio.run(_counts(app))
        assert counts == len(ids) == 40


async def _counts(app: Holdfast) -> list[int]:
    return [counts.states[State.READY] for counts in await app.store.counts()]


def test_goes_on_when_the_server_was_killed_and_came_back(durable_server: RedisServer) -> None:
    producer = Producer(durable_server.url)
    producer.enqueue(0)
    durable_server.restart(kill=True)
    for number in range(1, 10):
        producer.enqueue(number)
    assert producer.waiting() == 10
    producer.app.close()


def test_a_server_that_forgot_the_scripts_is_told_again(
    producer: Producer, redis_server: RedisServer, long_way: list[int]
) -> None:
    producer.enqueue(1)
    redis_server.command("SCRIPT", "FLUSH")
    producer.enqueue(2)
    producer.enqueue(3)
    assert long_way == [1, 1]
    assert producer.waiting() == 3


def test_replicas_are_waited_for_by_the_long_way(redis_server: RedisServer, long_way: list[int]) -> None:
    producer = Producer(f"{redis_server.url}?durability=replicated&deadline=200ms&wait_ms=50")
    for _ in range(2):
        with pytest.raises(DurabilityUnknown):
            producer.enqueue(1)
    assert len(long_way) >= 2
    producer.app.close()


def test_a_forked_child_has_connections_of_its_own(producer: Producer) -> None:
    producer.enqueue(0)

    def child() -> None:
        for number in range(20):
            producer.enqueue(number)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    for number in range(20):
        producer.enqueue(number)
    process.join()
    assert process.exitcode == 0
    assert producer.waiting() == 41


def test_an_interrupted_call_leaves_no_reply_for_the_next(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    producer.enqueue(0)
    producer.enqueue(0)
    whole = SyncSocket._exchange
    turns = count()

    def interrupted_once(self: SyncSocket, command: Command) -> object:
        if next(turns) == 0:
            self._socket.sendall(hiredis.pack_command(tuple(command)))  # type: ignore[arg-type]
            raise KeyboardInterrupt
        return whole(self, command)

    monkeypatch.setattr(SyncSocket, "_exchange", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        producer.enqueue(1)
    ids = {producer.enqueue(number) for number in range(5)}
    assert producer.waiting() == len(ids) + 3


@pytest.mark.parametrize("tls", [False, True])
def test_a_frozen_server_ends_the_try_and_no_reply_is_mixed_up(tls: bool, long_way: list[int]) -> None:
    with RedisServer(tls=tls) as server:
        query = f"?ca={server.certificates.authority}" if server.certificates else ""
        producer = Producer(server.url + query)
        producer.enqueue(0)
        producer.enqueue(1)
        assert long_way == [1]
        enqueue_now = producer.app.store.capabilities.enqueue_now
        assert enqueue_now is not None
        task = NewTask(task_id=producer.enqueue(2)[:-1] + "x", type="t", queue="default", payload=b"{}")
        server.freeze()
        try:
            assert enqueue_now([task]) is None
        finally:
            server.thaw()
        ids = {producer.enqueue(number) for number in range(5)}
        assert producer.waiting() in {len(ids) + 3, len(ids) + 4}
        producer.app.close()
