"""A sync `enqueue` talks to the server in the caller's own thread; what goes wrong there loses and doubles nothing."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.core.partitions import PartitionMap
from holdfast.core.task import State
from holdfast.errors import RequestConflict
from holdfast.stores import documents
from holdfast.stores.open import open_store
from holdfast.stores.postgres import direct
from holdfast.stores.postgres.direct import BlockingConnection
from holdfast.stores.postgres.store import PostgresStore
from tests.servers.postgres import PostgresServer
from tests.worker.rig import new_task


class Producer:
    """An app with one task type, and what its store says of it."""

    def __init__(self, url: str) -> None:
        self.app = Holdfast(url)
        self.type = self.app.task(name="t")(_square)

    def enqueue(self, number: int) -> str:
        """The id of a new task."""
        return self.type.enqueue(number).task_id

    def waiting(self) -> int:
        """How many tasks there are."""

        async def counts() -> int:
            (counts,) = await self.app.store.counts()
            return counts.states[State.READY]

        return asyncio.run(counts())


def _square(number: int) -> int:
    return number * number


@pytest.fixture
def producer(database_url: str) -> Iterator[Producer]:
    producer = Producer(database_url)
    yield producer
    producer.app.close()


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tasks went the long way, call by call."""
    calls: list[int] = []
    whole = PostgresStore.enqueue

    async def noted(self: PostgresStore, tasks: list[object], *, map_version: int = 0) -> object:
        calls.append(len(tasks))
        return await whole(self, tasks, map_version=map_version)  # type: ignore[arg-type]

    monkeypatch.setattr(PostgresStore, "enqueue", noted)
    return calls


def test_only_the_first_call_goes_the_long_way(producer: Producer, long_way: list[int]) -> None:
    ids = {producer.enqueue(number) for number in range(20)}
    assert long_way == [1]
    assert producer.waiting() == len(ids) == 20


def test_many_threads_at_once_enqueue_each_task_once(producer: Producer) -> None:
    producer.enqueue(0)
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: ids.extend(producer.enqueue(number) for number in range(25))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert producer.waiting() == len(set(ids)) + 1 == 201


def test_a_request_that_is_known_is_answered_with_its_task(producer: Producer) -> None:
    producer.enqueue(0)
    once = producer.type.using(request_id="once")
    first = once.enqueue(1)
    assert once.enqueue(1).task_id == first.task_id
    with pytest.raises(RequestConflict, match="once"):
        once.enqueue(2)
    assert producer.waiting() == 2


def test_a_caller_with_an_old_map_is_refused(producer: Producer) -> None:
    producer.enqueue(0)
    store = producer.app.store
    enqueue_now = store.capabilities.enqueue_now
    assert enqueue_now is not None
    new = PartitionMap(version=1, shards=("", "other"))
    asyncio.run(documents.put_partition_map(store, new))
    assert enqueue_now([new_task()], map_version=0) is None
    assert enqueue_now([new_task()], map_version=1) is not None


def test_a_waiter_in_another_process_s_store_is_woken(producer: Producer, database_url: str) -> None:
    producer.enqueue(0)
    woken = threading.Event()
    ends = threading.Event()

    async def wait() -> None:
        store = open_store(database_url)
        while not ends.is_set():
            if await store.wait(["default"], 20_000):
                woken.set()
        await store.close()

    waiter = threading.Thread(target=lambda: asyncio.run(wait()))
    waiter.start()
    try:
        for number in range(100):
            producer.enqueue(number)
            if woken.wait(0.1):
                break
        assert woken.is_set()
    finally:
        ends.set()
        producer.enqueue(0)
        waiter.join()


@pytest.mark.parametrize("when", ["before", "during"])
def test_an_ended_connection_makes_no_second_task(
    postgres_server: PostgresServer,
    producer: Producer,
    long_way: list[int],
    when: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct, "_REST_SECONDS", 0.0)
    whole = BlockingConnection.ask

    def ended(self: BlockingConnection, statement: str, arguments: tuple[object, ...]) -> object:
        rows = whole(self, statement, arguments)
        if "enqueue" in statement and not ids_after:
            ids_after.append("lost")
            raise psycopg.OperationalError("the answer was lost")
        return rows

    ids_after: list[str] = []
    ids = {producer.enqueue(number) for number in range(2)}
    if when == "before":
        postgres_server.terminate_backends("application_name = 'holdfast'")
    else:
        monkeypatch.setattr(BlockingConnection, "ask", ended)
    ids |= {producer.enqueue(number) for number in range(5)}
    assert len(long_way) >= (2 if when == "during" else 1)
    assert producer.waiting() == len(ids) == 7


def test_goes_on_when_the_server_was_killed_and_came_back() -> None:
    with PostgresServer() as server:
        producer = Producer(server.url(deadline="30s"))
        producer.enqueue(0)
        producer.enqueue(1)
        server.restart(kill=True)
        for number in range(2, 10):
            producer.enqueue(number)
        assert producer.waiting() == 10
        producer.app.close()


def test_a_forked_child_has_connections_of_its_own(producer: Producer) -> None:
    producer.enqueue(0)
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
    assert producer.waiting() == 42


def test_an_interrupted_call_leaves_no_answer_for_the_next(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    producer.enqueue(0)
    producer.enqueue(0)
    interrupt = [KeyboardInterrupt()]
    whole = BlockingConnection.wait

    def interrupted_once(self: BlockingConnection, *args: object, **options: object) -> object:
        if interrupt:
            raise interrupt.pop()
        return whole(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(BlockingConnection, "wait", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        producer.enqueue(1)
    ids = {producer.enqueue(number) for number in range(5)}
    assert producer.waiting() in {len(ids) + 2, len(ids) + 3}


def test_an_answer_that_does_not_come_ends_the_try(
    postgres_server: PostgresServer, database: str, producer: Producer, long_way: list[int]
) -> None:
    ids = {producer.enqueue(0), producer.enqueue(1)}
    with postgres_server.connect(database) as other:
        other.execute("BEGIN")
        other.execute("LOCK TABLE holdfast.tasks IN ACCESS EXCLUSIVE MODE")
        releasing = threading.Timer(1.5, lambda: other.execute("COMMIT"))
        releasing.start()
        ids.add(producer.enqueue(2))
        releasing.join()
    assert len(long_way) == 2
    assert producer.waiting() == len(ids) == 3


def test_a_level_that_waits_for_standbys_goes_the_long_way(database_url: str, long_way: list[int]) -> None:
    producer = Producer(f"{database_url}{'&' if '?' in database_url else '?'}durability=replicated")
    for number in range(3):
        producer.enqueue(number)
    assert long_way == [1, 1, 1]
    producer.app.close()


@pytest.mark.parametrize("left_seconds", [0.0, 0.05])
def test_a_try_ends_in_time_at_a_server_that_takes_connections_and_does_not_answer(left_seconds: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {"host": "127.0.0.1", "port": silent.getsockname()[1], "autocommit": True, "prepare_threshold": 0}
        ends_at = time.monotonic() + left_seconds
        with pytest.raises(psycopg.OperationalError, match="timeout expired"):
            BlockingConnection.made(options, ends_at)
    assert time.monotonic() >= ends_at
