"""What the store has at the end: by its own methods, and read past it from where it keeps its records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.core.task import State, Task
from holdfast.stores.contract import Query, Store

_PAGE: Final = 1_000
#: The places where a task in each state must be, and no task in another state may be.
_WAITING: Final = {State.SCHEDULED: "due", State.RETRY_PENDING: "due", State.CLAIMED: "claims", State.READY: "ready"}


@dataclass
class Snapshot:
    """All tasks, where each of them stands in the records, and what the counters say."""

    tasks: dict[str, Task] = field(default_factory=dict)
    #: By queue and state, as the store's counters say.
    counts: Counter[tuple[str, State]] = field(default_factory=Counter)
    #: The places in which each task is.
    places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    #: The token of each claim of each task, by its number.
    tokens: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))


#: Fills in places and tokens, past the store.
Reading = Callable[[Snapshot], None]


def place_of(state: State) -> str:
    """The place where a task of this state must be."""
    return _WAITING.get(state) or f"done/{state}"


async def take_snapshot(store: Store, read: Reading) -> Snapshot:
    """Reads everything; nothing else should be going on."""
    snapshot = Snapshot()
    async for task_ids in _pages(store):
        found = await store.get(task_ids)
        snapshot.tasks.update({task.task_id: task for task in found if task})
    for queue in await store.counts():
        snapshot.counts.update({(queue.queue, state): count for state, count in queue.states.items() if count})
    read(snapshot)
    return snapshot


async def _pages(store: Store) -> Any:
    cursor: str | None = None
    while True:
        page = await store.find(Query(limit=_PAGE, cursor=cursor))
        yield [task.task_id for task in page.tasks]
        if (cursor := page.cursor) is None:
            return
