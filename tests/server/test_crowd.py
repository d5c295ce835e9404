"""Two hundred clients, each on a connection of its own, wait at one server."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.bench.pollers import Crowd, Poller
from holdfast.server.server import ServerSettings
from tests.server.setting import Client, RunningServer, inside, running_server
from tests.server.test_polls import Counted

CLIENTS = 200
Poll = asyncio.Task[list[str]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(lambda: Counted(tmp_path), settings=ServerSettings(maintenance=False)) as running:
        yield running


async def _polls(server: RunningServer, queue_sets: Sequence[Sequence[str]]) -> list[Poll]:
    """One poll for each set of queues; the ids of the tasks it gets."""

    async def poll(poller: Poller, queues: Sequence[str]) -> list[str]:
        answer: Any = await poller.post("/v1/reserve", {"worker_id": "w", "queues": queues, "wait": "20s"})
        poller.close()
        return [task["task_id"] for task in answer["tasks"]]

    crowd = Crowd(port=server.port, token="none", queue="", count=len(queue_sets), poll_s=20)
    pollers = [Poller(crowd, number) for number in range(len(queue_sets))]
    await asyncio.gather(*(poller.connect() for poller in pollers))
    return [asyncio.create_task(poll(*pair)) for pair in zip(pollers, queue_sets, strict=True)]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  (it is another event loop)
            await asyncio.sleep(0.005)


def _counted(server: RunningServer) -> Counted:
    store = inside(server)
    assert isinstance(store, Counted)
    return store


def test_what_they_cost_the_store_depends_on_their_queues_and_not_on_their_number(server: RunningServer) -> None:
    sets = [["a"], ["b"], ["a", "b"], ["c"]]
    asyncio.run(_wait_in_sets(server, sets))


async def _wait_in_sets(server: RunningServer, sets: list[list[str]]) -> None:
    store, waiters = _counted(server), server.service.waiters
    client = Client(server.port)
    polls = await _polls(server, sets)
    await _until(lambda: waiters.waiting == len(sets) and store.reserves == len(sets))
    begun = time.monotonic()
    polls += await _polls(server, sets * (CLIENTS // len(sets) - 1))
    await _until(lambda: waiters.waiting == CLIENTS)
    looks = store.reserves
    # Where nothing was found, one of them looks again after a second.
    assert looks <= len(sets) * (2 + time.monotonic() - begun)
    assert (waiters.listening, store.waits) == (3, 3)
    for number, queue in enumerate(("a", "b", "c", "a"), start=1):
        task_id = await asyncio.to_thread(client.enqueue, queue)
        await _until(lambda expected=CLIENTS - number: waiters.waiting == expected)  # type: ignore[misc]
        assert store.reserves == looks + number  # of those who wait, nobody else has looked
        await _until(lambda expected=number: sum(poll.done() for poll in polls) == expected)  # type: ignore[misc]
        assert [poll.result() for poll in polls if poll.done()].count([task_id]) == 1
    server.loop.call_soon_threadsafe(server.service.leave)
    results = await asyncio.gather(*polls)
    assert Counter(map(len, results)) == {0: CLIENTS - 4, 1: 4}
    client.close()


def test_as_many_tasks_at_once_go_to_as_many_of_them(server: RunningServer) -> None:
    async def scenario() -> None:
        polls = await _polls(server, [["default"]] * CLIENTS)
        await _until(lambda: server.service.waiters.waiting == CLIENTS)
        client = Client(server.port)
        tasks = {"tasks": [{"type": "add"}] * CLIENTS}
        await asyncio.to_thread(client.post, "/v1/queues/default/tasks", tasks)
        async with asyncio.timeout(15):
            results = await asyncio.gather(*polls)
        assert {len(result) for result in results} == {1}
        assert len({task_id for result in results for task_id in result}) == CLIENTS
        client.close()

    asyncio.run(scenario())
