"""However many ask how deep the queues are, or whether the store answers: the store is asked once for all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.server.events import CachedRead, SharedRead
from holdfast.server.server import Server, ServerSettings
from holdfast.stores.contract import DocumentPage, QueueCounts
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from tests.server.setting import Client, OpenDoor, running_server


class _Asked:
    """Counts looks, which take until they are let go on."""

    def __init__(self) -> None:
        self.reads = 0
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def read(self) -> int:
        self.reads += 1
        number = self.reads
        self.begun.set()
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return number


def test_all_who_ask_before_a_look_begins_share_it_and_nobody_is_told_what_was_before() -> None:
    async def scenario() -> None:
        asked = _Asked()
        shared = SharedRead(asked.read)
        first = [asyncio.create_task(shared.get()) for _ in range(100)]
        await asked.begun.wait()
        later = [asyncio.create_task(shared.get()) for _ in range(100)]  # what they ask for may have changed since
        await asyncio.sleep(0)
        assert asked.reads == 1
        asked.may_end.set()
        assert set(await asyncio.gather(*first)) == {1}
        assert set(await asyncio.gather(*later)) == {2}

    asyncio.run(scenario())


def test_a_look_that_fails_fails_for_all_and_the_next_one_may_succeed() -> None:
    async def scenario() -> None:
        asked = _Asked()
        asked.may_end.set()
        asked.error = StoreUnavailable("away")
        shared = SharedRead(asked.read)
        answers = await asyncio.gather(*(shared.get() for _ in range(10)), return_exceptions=True)
        assert answers == [asked.error] * 10
        assert asked.reads == 1
        asked.error = None
        assert await shared.get() == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [None, StoreUnavailable("away")])
def test_the_last_look_is_remembered_whatever_it_came_to(error: Exception | None) -> None:
    async def scenario() -> None:
        asked = _Asked()
        asked.error = error
        cached = CachedRead(asked.read, 60)
        waiting = [asyncio.create_task(cached.get()) for _ in range(500)]
        await asyncio.sleep(0)
        asked.may_end.set()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.gather(*(cached.get() for _ in range(500)), return_exceptions=True)
        assert asked.reads == 1
        soon = CachedRead(asked.read, 0)
        for _ in range(3):
            await asyncio.gather(soon.get(), return_exceptions=True)
        assert asked.reads == 4

    asyncio.run(scenario())


class _Counting(PassingStore):
    reads = 0
    away = False

    async def counts(self) -> list[QueueCounts]:
        self.reads += 1
        return await super().counts()

    async def documents(self, kind: str, **filters: Any) -> DocumentPage:
        self.reads += 1
        if self.away:
            raise StoreUnavailable("away")
        return await self.inner.documents(kind, **filters)


def test_queues_that_are_looked_at_by_many_are_counted_once(tmp_path: Path) -> None:
    store = _Counting(open_store(f"sqlite:///{tmp_path}/tasks.db"))
    with running_server(lambda: store, settings=ServerSettings(maintenance=False)) as server:
        client = Client(server.port)
        client.enqueue("q")

        async def many() -> None:
            await asyncio.gather(*(server.service.reads.counts() for _ in range(300)))

        store.reads = 0
        server.call(many())
        assert store.reads == 1
        assert client.get("/v1/queues/q")["states"] == {"ready": 1}
        client.enqueue("q")
        assert client.get("/v1/queues/q")["states"] == {"ready": 2}  # never older than the question
        assert client.post("/v1/queues/q/pause")["paused"]
        client.close()


@pytest.mark.parametrize("away", [False, True])
def test_whether_the_store_answers_is_asked_once_for_all(tmp_path: Path, away: bool) -> None:
    async def scenario() -> int:
        store = _Counting(open_store(f"sqlite:///{tmp_path}/tasks.db"))
        server = Server(store, OpenDoor(), ServerSettings(maintenance=False))
        async with server.opened():
            store.away, store.reads = away, 0
            for _ in range(3):
                await asyncio.gather(*(server.check_ready() for _ in range(500)), return_exceptions=True)
            return store.reads

    assert asyncio.run(scenario()) == 1
