"""A repeat that finds everything done waits for the replicas as the first call did."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator

import pytest

from holdfast.clock import SystemClock
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import IdSource
from holdfast.core.partitions import PartitionMap, first_map
from holdfast.core.schedule.record import Schedule, ScheduledCall, Timing
from holdfast.core.task import NewTask
from holdfast.errors import DurabilityUnknown, StoreUnavailable
from holdfast.stores import documents
from holdfast.stores.contract import MAINTENANCE, Reserve, Store
from holdfast.stores.open import open_store
from tests.servers.flavours import FAST, FLAVOURS, Flavour
from tests.servers.replicas import Replicas
from tests.support import eventually

IDS = IdSource(SystemClock().now_ms, os.urandom)
TASK = NewTask(task_id=IDS.task_id(), type="work", queue="default", payload=b"{}")
OCCURRENCE = NewTask(task_id=IDS.task_id(), type="work", queue="default", payload=b"{}", request_id="nightly:1")
SCHEDULE = Schedule(name="nightly", timing=Timing(every_ms=1_000), call=ScheduledCall(type="work"), next_at_ms=1)
RESERVE = Reserve(
    claim_id=IDS.claim_id(), worker_id="w", shares=[QueueShare("default", 1)], max_tasks=1, lease_ms=60_000
)
MAP: PartitionMap = first_map(("redis://one", "redis://two"))

CALLS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "enqueue": lambda store: store.enqueue([TASK]),
    "reserve": lambda store: store.reserve(RESERVE),
    "keep": lambda store: documents.keep(store, "key", b"1", 60_000, None),
    "lead": lambda store: store.lead(MAINTENANCE, "w", 60_000),
    "put_tasks": lambda store: documents.put_schedule(store, "nightly", SCHEDULE, 0, [OCCURRENCE]),
    "put_schedule": lambda store: documents.put_schedule(store, "nightly", SCHEDULE, 0),
    "remove_schedule": lambda store: documents.put_schedule(store, "nightly", None, 1),
    "put_document": lambda store: documents.put(store, "token", "a", b"{}", 0),
    "remove_document": lambda store: documents.put(store, "token", "a", None, 1),
    "put_partition_map": lambda store: documents.put_partition_map(store, MAP),
}


@pytest.fixture(scope="module", params=FLAVOURS)
def shared_pair(request: pytest.FixtureRequest) -> Iterator[Replicas]:
    flavour: Flavour = request.param
    with Replicas(1, flavour, profile=FAST) as servers:
        yield servers


@pytest.fixture
def servers(shared_pair: Replicas) -> Replicas:
    """A master with a replica that has all it wrote."""
    shared_pair.heal()
    shared_pair.master.flush()
    return shared_pair


def _wait_until_in_step(servers: Replicas) -> None:
    with servers.master.client() as client:
        client.set("in", "step")
        eventually(lambda: client.wait(1, 100) == 1, what="the replica is in step")


@pytest.mark.parametrize("name", CALLS)
def test_a_repeat_is_no_safer_than_the_replicas_are(servers: Replicas, name: str) -> None:
    async def scenario() -> None:
        before = open_store(servers.url)
        await before.enqueue([TASK] if name == "reserve" else [])
        if name == "remove_schedule":
            await documents.put_schedule(before, "nightly", SCHEDULE, 0)
        if name == "remove_document":
            await documents.put(before, "token", "a", b"{}", 0)
        await before.close()
        _wait_until_in_step(servers)
        servers.replicas[0].freeze()
        # The second call comes from another process: it has written nothing on its connections.
        for _ in range(2):
            store = open_store(f"{servers.url}?durability=replicated&deadline=150ms&wait_ms=50")
            with pytest.raises((DurabilityUnknown, StoreUnavailable)):  # the latter on a busy machine
                await CALLS[name](store)
            await store.close()
        servers.replicas[0].thaw()
        store = open_store(f"{servers.url}?durability=replicated&deadline=10s&wait_ms=50")
        await CALLS[name](store)
        await store.close()

    asyncio.run(scenario())
