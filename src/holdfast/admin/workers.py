"""Workers: finding one, what it runs, and telling it what to do."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.admin.inspect import every_page, worker_table
from holdfast.core.task import State, Task
from holdfast.errors import UnknownWorker
from holdfast.stores.contract import Query, Store, WorkerOrders, WorkerRecord

#: How many running tasks, of all workers, are looked through at most.
LOOK_LIMIT = 100_000


async def one_worker(store: Store, name: str) -> WorkerRecord:
    """The worker with this id, or the only one whose id begins like that, or `UnknownWorker`."""
    found = [worker for worker in await worker_table(store) if worker.worker_id.startswith(name)]
    exact = [worker for worker in found if worker.worker_id == name]
    if not found:
        raise UnknownWorker(f"no worker {name} in {store.url}; `holdfast workers ls` lists them")
    if len(exact or found) > 1:
        raise UnknownWorker(f"{len(found)} workers begin with {name}; write more of the id")
    return (exact or found)[0]


async def running_tasks(store: Store, worker: WorkerRecord) -> list[Task]:
    """What its processes hold, the oldest claim first."""
    query = Query(states=frozenset({State.CLAIMED}))
    # Each process claims under a name of its own: the worker's id and its place in it.
    of_worker = f"{worker.worker_id}:"
    found = [
        task
        async for page in every_page(store, query, LOOK_LIMIT)
        for task in page
        if f"{task.worker_id}:".startswith(of_worker)
    ]
    return sorted(found, key=lambda task: task.claimed_at_ms or 0)


async def set_concurrency(store: Store, names: Sequence[str], concurrency: int | None) -> list[str]:
    """Orders so many tasks at once in each process (None: as started) of these workers, or of all that live.

    They heed it with their next heartbeat. Gives their ids.
    """
    if names:
        chosen = [await one_worker(store, name) for name in names]
    else:
        chosen = [worker for worker in await worker_table(store) if worker.alive]
    orders = WorkerOrders(concurrency=concurrency)
    for worker in chosen:
        if not worker.alive or not await store.order(worker.worker_id, orders):
            raise UnknownWorker(f"worker {worker.worker_id} is gone; `holdfast workers ls` lists those that live")
    return [worker.worker_id for worker in chosen]
