"""What the store has at the end: by its own methods, and read past it from the keys of the servers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from tests.servers.redis_server import RedisServer

import redis
from holdfast.core.task import State, Task
from holdfast.stores.contract import Query, Store

_PAGE: Final = 1_000
#: The sets that a task in each state must be in, and no task in another state may be in.
_WAITING: Final = {State.SCHEDULED: "due", State.RETRY_PENDING: "due", State.CLAIMED: "claims", State.READY: "ready"}


@dataclass
class Snapshot:
    """All tasks, where each of them stands in the keys, and what the counters say."""

    tasks: dict[str, Task] = field(default_factory=dict)
    #: By queue and state, as the store's counters say.
    counts: Counter[tuple[str, State]] = field(default_factory=Counter)
    #: The sets in which each task is.
    places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    #: The token of each claim of each task, by its number.
    tokens: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))


def place_of(state: State) -> str:
    """The set in which a task of this state must be."""
    return _WAITING.get(state) or f"done/{state}"


async def take_snapshot(store: Store, masters: Sequence[RedisServer]) -> Snapshot:
    """Reads everything; nothing else should be going on."""
    snapshot = Snapshot()
    async for task_ids in _pages(store):
        found = await store.get(task_ids)
        snapshot.tasks.update({task.task_id: task for task in found if task})
    for queue in await store.counts():
        snapshot.counts.update({(queue.queue, state): count for state, count in queue.states.items() if count})
    for master in masters:
        with master.client(decode_responses=False) as client:
            for key in client.scan_iter(match="*/all", count=_PAGE):
                _read_partition(client, key.decode().removesuffix("/all"), snapshot)
    return snapshot


async def _pages(store: Store) -> Any:
    cursor: str | None = None
    while True:
        page = await store.find(Query(limit=_PAGE, cursor=cursor))
        yield [task.task_id for task in page.tasks]
        if (cursor := page.cursor) is None:
            return


def _read_partition(client: redis.Redis, base: str, snapshot: Snapshot) -> None:
    members = _members(client, f"{base}/all")
    for name in ("due", "claims"):
        _note(snapshot, _members(client, f"{base}/{name}"), name)
    for state in State:
        _note(snapshot, _members(client, f"{base}/done/{state}"), f"done/{state}")
    for key in client.scan_iter(match=f"{base}/ready/*", count=_PAGE):
        _note(snapshot, _members(client, key.decode()), "ready")
    for ids in _chunks(members):
        _read_claims(client, base, ids, snapshot)


def _members(client: redis.Redis, key: str) -> list[str]:
    found: Any = client.zrange(key, 0, -1)
    return [member.decode() for member in found]


def _note(snapshot: Snapshot, members: Iterable[str], place: str) -> None:
    for member in members:
        snapshot.places[member].append(place)


def _read_claims(client: redis.Redis, base: str, ids: Sequence[str], snapshot: Snapshot) -> None:
    pipeline = client.pipeline(transaction=False)
    for task_id in ids:
        pipeline.hmget(f"{base}/t/{task_id}", "t", "d")
        pipeline.lrange(f"{base}/h/{task_id}", 0, -1)
    replies = pipeline.execute()
    for task_id, (token, delivery), history in zip(ids, replies[::2], replies[1::2], strict=True):
        tokens = snapshot.tokens[task_id]
        for entry in history:
            number, _attempt, ended_token, *_ = msgspec.msgpack.decode(entry)
            tokens[int(number)] = ended_token
        if token:
            tokens[int(delivery)] = token.decode()


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(ids), _PAGE):
        yield ids[first : first + _PAGE]
