"""Long polls at a real server: who is woken, what it costs the store, who is not waited for."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.lifecycle import Change
from holdfast.core.retry import DEFAULT_POLICY
from holdfast.core.task import Claimed
from holdfast.server.budgets import Room
from holdfast.server.polls import Polls
from holdfast.server.server import ServerSettings
from holdfast.stores.contract import Reserve, Reserved
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from holdfast.stores.remote.limits import MAX_ANSWERS_BYTES
from tests.server.setting import Client, RunningServer, inside, running_server
from tests.support import eventually


class Counted(PassingStore):
    """Counts the calls, and can hold a reserve back."""

    waits = 0
    reserves = 0

    def __init__(self, path: Path) -> None:
        super().__init__(open_store(f"sqlite:///{path}/tasks.db"))
        self.held: asyncio.Event | None = None

    async def wait(self, wakeups: Sequence[str], timeout_ms: int) -> bool:
        self.waits += 1
        return await super().wait(wakeups, timeout_ms)

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        self.reserves += 1
        if self.held is not None:
            await self.held.wait()
        return await super().reserve(request, settle)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(lambda: Counted(tmp_path), settings=ServerSettings(maintenance=False)) as running:
        yield running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(50) as threads:
        yield threads


def _poll(port: int, **fields: Any) -> list[dict[str, Any]]:
    client = Client(port)
    try:
        return client.reserve(**{"wait": "20s", **fields})
    finally:
        client.close()


def _waiting(server: RunningServer, count: int) -> None:
    eventually(lambda: server.service.waiters.waiting == count, what=f"{count} clients wait")


def test_a_poll_is_answered_as_soon_as_there_is_a_task(
    server: RunningServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    poll = pool.submit(_poll, server.port)
    _waiting(server, 1)
    task_id = client.enqueue()
    assert [task["task_id"] for task in poll.result(10)] == [task_id]


def test_a_poll_without_a_task_ends_with_none(client: Client) -> None:
    assert client.reserve(wait="50ms") == []


def test_of_forty_polls_one_enqueue_wakes_one(server: RunningServer, client: Client, pool: ThreadPoolExecutor) -> None:
    polls: list[Future[list[dict[str, Any]]]] = [pool.submit(_poll, server.port) for _ in range(40)]
    _waiting(server, 40)
    store = inside(server)
    assert isinstance(store, Counted)
    assert (server.service.waiters.listening, store.waits) == (1, 1)
    looks = store.reserves
    assert looks < 40  # of those who come while nothing has changed, not all look
    for count in range(1, 4):
        client.enqueue()
        _waiting(server, 40 - count)
        assert sum(poll.done() for poll in polls) <= count
        assert store.reserves - looks == count
    client.post("/v1/queues/default/tasks", {"tasks": [{"type": "add"}] * 10})
    _waiting(server, 27)
    server.call(_leave(server))
    results = [poll.result(10) for poll in polls]
    ids = [task["task_id"] for tasks in results for task in tasks]
    assert len(ids) == len(set(ids)) == 13


def test_those_who_come_while_one_looks_wait_for_what_it_comes_to(
    server: RunningServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    """However slow the store is, and however many come back at once."""
    store = inside(server)
    assert isinstance(store, Counted)

    async def hold() -> None:
        store.held = asyncio.Event()

    async def let_go() -> None:
        assert store.held is not None
        store.held.set()

    server.call(hold())
    polls = [pool.submit(_poll, server.port) for _ in range(40)]
    _waiting(server, 40)
    assert store.reserves == 1
    server.call(let_go())
    eventually(lambda: not server.service.polls._reserves)
    task_id = client.enqueue()
    _waiting(server, 39)
    assert store.reserves == 2
    server.call(_leave(server))
    assert sorted(len(poll.result(10)) for poll in polls) == [0] * 39 + [1]
    assert [task_id] in [[task["task_id"] for task in poll.result()] for poll in polls]


async def _leave(server: RunningServer) -> None:
    server.service.leave()


def test_settlements_sent_along_are_applied_before_the_wait(
    server: RunningServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    claim = client.claim()
    settle = [{"event": "ack", "task_id": claim["task_id"], "token": claim["token"]}]
    poll = pool.submit(_poll, server.port, settle=settle)
    eventually(lambda: client.get(f"/v1/tasks/{claim['task_id']}")["state"] == "succeeded")
    assert not poll.done()
    client.enqueue()
    assert len(poll.result(10)) == 1


def _begin_poll(port: int, **fields: Any) -> Client:
    """A client that has sent a poll and does not wait for the answer."""
    client = Client(port)
    body = json.dumps({"worker_id": "w", "queues": ["default"], "wait": "20s", **fields}).encode()
    client._connection.request("POST", "/v1/reserve", body, {"Content-Type": "application/json"})
    return client


def test_a_client_that_goes_away_frees_its_place(server: RunningServer, client: Client) -> None:
    gone = _begin_poll(server.port)
    _waiting(server, 1)
    gone.close()
    _waiting(server, 0)
    task_id = client.enqueue()
    assert [task["task_id"] for task in client.reserve()] == [task_id]


@pytest.mark.parametrize(("fields", "state"), [({}, "ready"), ({"claim_id": "mine"}, "claimed")])
def test_what_was_claimed_for_a_client_that_has_gone_is_handed_back_unless_it_can_ask_again(
    server: RunningServer, client: Client, fields: dict[str, Any], state: str
) -> None:
    store = inside(server)
    assert isinstance(store, Counted)
    task_id = client.enqueue()

    async def hold() -> None:
        store.held = asyncio.Event()

    async def let_go() -> None:
        assert store.held is not None
        store.held.set()

    server.call(hold())
    gone = _begin_poll(server.port, **fields)
    eventually(lambda: store.reserves == 1)
    gone.close()
    _waiting(server, 0)
    server.call(let_go())
    eventually(lambda: client.get(f"/v1/tasks/{task_id}")["deliveries"] == 1)
    eventually(lambda: client.get(f"/v1/tasks/{task_id}")["state"] == state)
    if fields:
        assert [task["task_id"] for task in client.reserve(**fields)] == [task_id]


def test_a_server_that_leaves_answers_polls_with_nothing(tmp_path: Path) -> None:
    with (
        ThreadPoolExecutor(3) as pool,
        running_server(lambda: Counted(tmp_path), settings=ServerSettings(maintenance=False)) as server,
    ):
        polls = [pool.submit(_poll, server.port) for _ in range(2)]
        client = Client(server.port)
        task_id = client.enqueue("elsewhere")
        result = pool.submit(client.get, f"/v1/tasks/{task_id}?wait=20s")
        _waiting(server, 2)
    assert [poll.result(10) for poll in polls] == [[], []]
    assert result.result(10)["state"] == "ready"
    client.close()


def test_a_wait_of_the_store_is_one_of_those_who_wait(
    server: RunningServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    def wait() -> Any:
        other = Client(server.port)
        try:
            return other.post("/v1/store/wait", {"wakeups": ["default"], "timeout_ms": 20_000})
        finally:
            other.close()

    rung = pool.submit(wait)
    poll = pool.submit(_poll, server.port, queues=["default", "other"])
    _waiting(server, 2)
    client.enqueue("other")
    assert len(poll.result(10)) == 1
    assert not rung.done()
    client.enqueue()
    assert rung.result(10) is True
    assert client.post("/v1/store/wait", {"wakeups": ["default"], "timeout_ms": 10}) in {True, False}


def test_types_that_nobody_here_knows_do_not_keep_a_task_from_who_does(
    server: RunningServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    strangers = [pool.submit(_poll, server.port, types=["other"]) for _ in range(3)]
    _waiting(server, 3)
    poll = pool.submit(_poll, server.port, types=["add"])
    _waiting(server, 4)
    client.enqueue()
    assert len(poll.result(10)) == 1
    server.call(_leave(server))
    assert [each.result(10) for each in strangers] == [[], [], []]


def test_results_are_waited_for_in_one_call_for_all(server: RunningServer, pool: ThreadPoolExecutor) -> None:
    client = Client(server.port)
    claims = [client.claim() for _ in range(8)]
    started = threading.Barrier(9)

    def wait(task_id: str) -> Any:
        other = Client(server.port)
        started.wait(10)
        try:
            return other.get(f"/v1/tasks/{task_id}?wait=20s")
        finally:
            other.close()

    results = [pool.submit(wait, claim["task_id"]) for claim in claims]
    started.wait(10)
    changes = [{"event": "ack", "task_id": claim["task_id"], "token": claim["token"]} for claim in claims]
    client.post("/v1/settle", {"changes": changes})
    assert {result.result(20)["state"] for result in results} == {"succeeded"}
    client.close()


def test_a_token_that_gets_little_may_reserve_more_at_once_than_one_that_gets_much(server: RunningServer) -> None:
    """Reserves that wait for a store which is slow hold their room, and must not keep those of others from theirs."""

    class Store(PassingStore):
        size = 10
        asked = 0
        may_answer = asyncio.Event()

        async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
            self.asked += 1
            await self.may_answer.wait()
            claim = Claimed("0" * 32, "t", "a", "q", b"x" * self.size, {}, 0, DEFAULT_POLICY, 1, 0, 0)
            return Reserved([claim])

    async def at_once(size: int) -> int:
        """How many of two hundred reserves are at the store at the same time, after some that brought so much."""
        store, room = Store(inside(server)), Room(MAX_ANSWERS_BYTES)
        store.size = size
        polls = Polls(store, server.service.waiters)

        async def reserve(number: int) -> None:
            request = Reserve(claim_id=f"c{number}", worker_id="w", shares=[], max_tasks=10, lease_ms=1_000)
            with room.share("token") as share:
                await polls.reserve_now(store, request, (), share)

        store.may_answer.set()
        for number in range(100):
            await reserve(number)
        store.may_answer.clear()
        store.asked = 0
        waiting = [asyncio.create_task(reserve(number)) for number in range(200)]
        for _ in range(20):
            await asyncio.sleep(0)
        asked = store.asked
        store.may_answer.set()
        await asyncio.gather(*waiting)
        return asked

    assert server.call(at_once(10)) > 100
    assert server.call(at_once(4_000_000)) < 20
