"""A call to a store that does not answer ends at the deadline: one layer retries, and what it does counts within it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence

import pytest

from holdfast import Holdfast
from holdfast.core.task import Enqueued, NewTask
from holdfast.errors import StoreUnavailable
from holdfast.stores.connections import Deadline, Try
from holdfast.stores.contract import Placement, Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from tests.support import free_port

DEADLINE_MS = 300


class Counted(PassingStore):
    """Counts the calls of a producer that needs its store."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.calls = 0

    async def placement(self) -> Placement:
        self.calls += 1
        return await super().placement()

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        self.calls += 1
        return await super().enqueue(tasks, map_version=map_version)


def _square(number: int) -> int:
    return number * number


@pytest.fixture
def limits_ms(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time that each deadline was given, as it began."""
    limits_ms: list[int] = []
    begin = Deadline.__init__

    def noted(self: Deadline, limit_ms: int) -> None:
        limits_ms.append(limit_ms)
        begin(self, limit_ms)

    monkeypatch.setattr(Deadline, "__init__", noted)
    return limits_ms


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    """The stores that were opened."""
    stores: list[Counted] = []

    def opened(url: str) -> Store:
        stores.append(Counted(open_store(url)))
        return stores[-1]

    monkeypatch.setattr("holdfast.app.open_store", opened)
    return stores


@pytest.fixture
def silent_port() -> Iterator[int]:
    """The port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def enqueued_in_vain(url: str, request_id: str | None = None, words: str = "connection refused") -> None:
    with Holdfast(url) as app:
        task = app.task(name="t")(_square)
        with pytest.raises(StoreUnavailable, match=words + r".*\(tried for [\d.]+m?s\)") as caught:
            task.using(request_id=request_id).enqueue(1)
    assert caught.value.tried_ms >= DEADLINE_MS


def at(store: str, port: int) -> str:
    return f"{URLS[store].format(port)}?deadline={DEADLINE_MS}ms"


URLS = {
    "redis": "redis://127.0.0.1:{}",
    "postgres": "postgresql://me@127.0.0.1:{}/tasks",
    "http": "http://127.0.0.1:{}",
}


@pytest.mark.parametrize("request_id", [None, "order-42"])
@pytest.mark.parametrize("store", URLS)
def test_enqueue_has_one_deadline(
    store: str, request_id: str | None, stores: list[Counted], limits_ms: list[int]
) -> None:
    enqueued_in_vain(at(store, free_port()), request_id)
    # Where to place a task is asked for once and known without the store for one partition; over HTTP it is not.
    assert stores[0].calls == (1 if store == "http" else 2)
    assert limits_ms == [DEADLINE_MS]


@pytest.mark.parametrize("request_id", [None, "order-42"])
@pytest.mark.parametrize("store", ["redis", "postgres"])
def test_enqueue_has_one_deadline_in_each_partition(
    store: str, request_id: str | None, stores: list[Counted], limits_ms: list[int]
) -> None:
    enqueued_in_vain(",".join(at(store, free_port()) for _ in range(2)), request_id)
    assert stores[0].calls == 1
    assert limits_ms == [DEADLINE_MS] * 2  # for the map, of which each partition has a copy


@pytest.mark.parametrize("store", URLS)
def test_the_tries_at_a_silent_server_fit_into_the_deadline(
    store: str, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries_seconds: list[float] = []
    begin = Try.__init__

    def noted(self: Try, silent_seconds: float) -> None:
        tries_seconds.append(silent_seconds)
        begin(self, silent_seconds)

    monkeypatch.setattr(Try, "__init__", noted)
    enqueued_in_vain(at(store, silent_port), words="no answer")
    shortest_try_seconds = 0.2  # the last one may begin just before the deadline
    assert sum(tries_seconds) <= DEADLINE_MS / 1000 + shortest_try_seconds
