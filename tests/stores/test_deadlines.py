"""A producer whose store is away hears of it when the deadline has passed: one layer retries, not two."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast import Holdfast
from holdfast.core.task import Enqueued, NewTask
from holdfast.errors import StoreUnavailable
from holdfast.stores.contract import Placement, Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from tests.support import free_port


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


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:{}?", "postgresql://me@127.0.0.1:{}/tasks?", "http://127.0.0.1:{}?"]
)
def test_enqueue_is_retried_up_to_the_deadline_and_no_longer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stores: list[Counted] = []

    def opened(url: str) -> Store:
        stores.append(Counted(open_store(url)))
        return stores[-1]

    monkeypatch.setattr("holdfast.app.open_store", opened)
    with Holdfast(url.format(free_port()) + "deadline=300ms") as app:
        task = app.task(name="t")(_square)
        with pytest.raises(StoreUnavailable, match=r"connection refused.*\(tried for [\d.]+m?s\)") as caught:
            task.enqueue(1)
    # Where to place a task is asked for once and known without the store for one partition; over HTTP it is not.
    assert stores[0].calls == (1 if url.startswith("http") else 2)
    assert caught.value.tried_ms >= 300
