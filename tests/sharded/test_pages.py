"""Pages over three partitions while tasks vanish inside one `find`: what stays is shown, all of it, once."""

from __future__ import annotations

from pathlib import Path

from holdfast.core import lifecycle
from holdfast.core.task import State
from holdfast.stores.contract import Page, Query, Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.sharded.store import ShardedStore
from holdfast.testing.kit.kit import Kit
from tests.sharded.test_spread import with_kit

READY = Query(states=frozenset({State.READY}), limit=6)


class Cancelling(PassingStore):
    """A partition in which somebody cancels the last tasks of a page as soon as it was read."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.cancelled: list[str] = []
        self.finds = 0

    async def find(self, query: Query) -> Page:
        page = await self.inner.find(query)
        self.finds += 1
        victims = [task.task_id for task in page.tasks[:2]]
        await self.inner.apply([lifecycle.cancel(task_id) for task_id in victims])
        self.cancelled += victims
        return page


async def _walk(store: Store) -> list[str]:
    shown: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.find(Query(states=READY.states, limit=READY.limit, cursor=cursor))
        shown += [task.task_id for task in page.tasks]
        if page.cursor is None:
            return shown
        cursor = page.cursor


def test_what_vanishes_between_the_looks_of_one_page_hides_nothing(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        ids = await kit.enqueue(60)
        partitions = [Cancelling(partition) for partition in await kit.store.partitions()]
        shown = await _walk(ShardedStore(partitions))
        gone = {task_id for partition in partitions for task_id in partition.cancelled}
        assert gone
        assert len(shown) == len(set(shown))
        assert set(ids) - gone <= set(shown)
        # One look a page: the cursor behind each task is known without another one.
        pages = -(-len(shown) // READY.limit)
        assert max(partition.finds for partition in partitions) <= pages + 1

    with_kit(tmp_path, check)
