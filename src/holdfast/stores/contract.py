"""The store contract: what every engine promises, no method optional, no driver's type in sight.

Every writing method takes a batch, is one round trip, and is durable before it returns. Ids come from the
caller, so a call whose reply was lost is simply made again. All decisions about states are made elsewhere, in
`core/lifecycle.py`; a store executes them. The store's clock decides what is due and what has run out.

`StoreUnavailable` means: repeat with the same ids. The kit in `holdfast.testing` checks these promises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

import msgspec

from holdfast.core.fairness import QueueShare
from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.partitions import PartitionMap
from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.schedule import Schedule
from holdfast.core.task import Claimed, Enqueued, Extension, Hold, Lapsed, NewTask, State, Task

#: The bell of the upkeep: rung when something becomes due earlier than anything before. No queue has such a name.
UPKEEP_BELL: Final = "*upkeep"
#: The duty whose epoch guards promote, requeue and prune.
UPKEEP_DUTY: Final = "upkeep"
#: The largest batch of one call; callers with more split it.
MAX_BATCH: Final = 1_000
#: From a queue and a request_id (or None) to the partition that the id of a new task must carry.
Placement = Callable[[str, str | None], int]


class Reserve(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's request for tasks."""

    claim_id: str  # made by the worker; the same id again gets the same tasks
    worker_id: str
    #: Up to `limit` from each queue in this order, then again in this order until `max_tasks`.
    shares: Sequence[QueueShare]
    max_tasks: int
    lease_ms: int
    #: The types that this worker can run; None means any.
    types: frozenset[str] | None = None
    #: The caller knows all that this claim_id holds: claim `max_tasks` more without looking. Never set on a repeat.
    fresh: bool = False


class Reserved(msgspec.Struct, frozen=True):
    """The claimed tasks, in the order in which to start them, and the verdicts on the changes sent along."""

    tasks: list[Claimed]
    verdicts: list[Verdict] = []


class Kept(msgspec.Struct, frozen=True):
    """What stands under a key now, None for nothing, and why the caller's claim does not count if it does not."""

    value: bytes | None
    reason: str = ""


class Promoted(msgspec.Struct, frozen=True):
    """How many tasks became ready, and how long until the next one is due (None: nothing waits)."""

    count: int
    next_due_in_ms: int | None


class Duty(msgspec.Struct, frozen=True):
    """Who holds a duty; its epoch grows with every change of holder."""

    name: str
    owner: str
    epoch: int
    held: bool  # by the one who asked
    expires_in_ms: int = 0


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks to find; what is None does not restrict. Newest first."""

    states: frozenset[State] | None = None
    queue: str | None = None
    type: str | None = None
    worker_id: str | None = None
    error_type: str | None = None
    limit: int = 50
    #: Where the last page ended.
    cursor: str | None = None


class Page(msgspec.Struct, frozen=True):
    """Tasks without history, and the cursor of the next page if there is one."""

    tasks: list[Task]
    cursor: str | None = None


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks of a queue stand in each state."""

    queue: str
    paused: bool = False
    #: What each level of priority is worth in waiting: core/priority.py.
    step_ms: int = AGED_STEP_MS
    states: dict[State, int] = {}
    #: How long the oldest ready task has been waiting, None if none is ready.
    oldest_ready_ms: int | None = None


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself with every heartbeat."""

    worker_id: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    types: tuple[str, ...]
    processes: int
    concurrency: int
    running: int
    #: Of all its processes together, the supervisor included.
    memory_bytes: int = 0
    #: How many runs have ended in the last minute.
    ended_last_minute: int = 0
    status: Literal["running", "draining"] = "running"
    started_at_ms: int = 0  # set by the store
    seen_at_ms: int = 0  # set by the store
    alive: bool = True  # set by the store: heard of within its own time to live


class WorkerOrders(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an operator wants of a worker that runs."""

    #: Tasks at once in each process; None: as it was started.
    concurrency: int | None = None


class DueSchedules(msgspec.Struct, frozen=True):
    """Schedules by the time of their next tick, and the store's time."""

    now_ms: int
    schedules: list[Schedule]


class Document(msgspec.Struct, frozen=True):
    """Something that is not about one task, such as a token: a few bytes under a kind and a name, by version."""

    kind: str
    name: str
    value: bytes
    version: int


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long, and how many of, the finished tasks are kept; also workers that went silent and discard records."""

    succeeded_ms: int = 86_400_000
    failed_ms: int = 86_400_000
    cancelled_ms: int = 86_400_000
    dead_lettered_ms: int = 14 * 86_400_000
    #: At most this many finished tasks of each kind in each partition, oldest go first.
    keep: int = 5_000_000
    discards_ms: int = 90 * 86_400_000
    #: So long, at most, are tasks kept that succeeded or were cancelled while the store is nearly full: new tasks come
    #: before old results. Dead letters stay.
    nearly_full_ms: int = 60_000

    def age_when_nearly_full_ms(self, state: State) -> int:
        """How long a task in this final state is kept while the store is nearly full."""
        spared = state in {State.FAILED, State.DEAD_LETTERED}
        return self.age_ms(state) if spared else min(self.age_ms(state), self.nearly_full_ms)

    def age_ms(self, state: State) -> int:
        """How long a task in this final state is kept."""
        ages = {
            State.SUCCEEDED: self.succeeded_ms,
            State.FAILED: self.failed_ms,
            State.CANCELLED: self.cancelled_ms,
            State.DEAD_LETTERED: self.dead_lettered_ms,
        }
        return ages[state]


class Discard(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a discarded task."""

    task_id: str
    type: str
    queue: str
    payload: bytes
    reason: str
    discarded_at_ms: int
    error: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a store's report on itself."""

    level: Literal["ok", "note", "warning", "problem"]
    check: str
    text: str


class Store(Protocol):
    """Where everything is kept: one URL."""

    #: The URL without its password, for messages.
    url: str
    #: The version of the partition map by which the caller routes its calls through this store, 0 for none. While the
    #: store's own map is newer, enqueue and reserve are refused with `StaleMap`, and nothing is done; so is a
    #: `put_schedule` with tasks, unless it comes from the owner of the partition, with an epoch.
    map_version: int

    # -- the path of a task ---------------------------------------------------------------------------------

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """Records tasks as `ready`, or `scheduled` if their time has not come; one answer each, in order.

        A task_id that is known, or a request_id that is known in its queue, gives the task that is there
        (`created=False`); if type or payload differ, a conflict, and nothing recorded. Duplicates inside the
        batch count as sent one after the other. All or nothing on an error: `StoreFull` records none of them.
        """
        ...

    def enqueue_now(self, tasks: Sequence[NewTask]) -> list[Enqueued] | None:
        """One try at `enqueue` in the thread of a sync caller, which saves it the way to an event loop and back.

        None, if the store has no such way, or if anything at all is out of the ordinary: what has become of the tasks
        is not known then, and they must be sent again, the same tasks with the same ids, by `enqueue`.
        """
        ...

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Applies `settle`, then moves up to `max_tasks` from `ready` to `claimed`, in one transaction.

        Only queues that are not paused, only types asked for, lowest rank first, first come first served
        within a rank. The attempt and the delivery of each claimed task are counted here. A claim_id that
        holds tasks already gets exactly those again, with unchanged leases, whatever types are asked for; with no
        types at all, a claim_id gets what it holds and nothing new.
        """
        ...

    async def extend(self, holds: Sequence[Hold], lease_ms: int) -> list[Extension]:
        """Gives every current claim at least `lease_ms` from now, records its progress, tells of cancellation.

        A claim that has run out but was not requeued yet is still current.
        """
        ...

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Executes each change whose guards hold, as `lifecycle.step` says, in order, one verdict each."""
        ...

    async def keep(self, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Kept:
        """Keeps a value under a key for `ttl_ms`, if the claim is current and the key is free; tells what stands there.

        The first value stays, for the time that it was given, whoever comes after it. The key is one for all tasks. A
        claim that has run out but was not requeued yet is still current. Without a hold nothing is checked: for
        callers that have done so where the claim is.
        """
        ...

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Moves up to `limit` due tasks to `ready`, never one before its time; `StaleEpoch` if not the owner's.

        Also rings for every queue in which ready tasks wait: a ring whose hearer died is made up for here, so that
        idle workers need not look by themselves all the time.
        """
        ...

    async def expired(self, limit: int = 1_000) -> list[Lapsed]:
        """Claims whose lease has run out, the oldest first; changes nothing."""
        ...

    async def overdue(self, limit: int = 1_000) -> list[str]:
        """Tasks that no worker ever began and whose deadline to start has passed, the oldest deadline first.

        By the store's clock: `policy.expires_ms` after the creation. Changes no task.
        """
        ...

    async def wait(self, bells: Sequence[str], timeout_ms: int) -> bool:
        """Sleeps until one of these queues (or `UPKEEP_BELL`) may have something to do; True if rung.

        Only a hint: a lost ring costs latency, never work. One ring wakes one waiter. Where rings may go unheard for
        longer than `promote` can make up for, it returns sooner than asked for.
        """
        ...

    # -- looking --------------------------------------------------------------------------------------------

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """The tasks with payload, result and history; None for an id that is not known."""
        ...

    async def kept(self, key: str) -> bytes | None:
        """What is kept under this key; None if nothing is, or its time is over."""
        ...

    async def find(self, query: Query) -> Page:
        """Tasks that match, newest first, without history, at most `limit`, with a cursor to go on."""
        ...

    async def counts(self) -> list[QueueCounts]:
        """Depths of all queues that have tasks, are paused, or have a step of their own, by name."""
        ...

    async def workers(self) -> list[WorkerRecord]:
        """Workers heard of and not yet pruned, by id."""
        ...

    async def discards(self, limit: int = 100) -> list[Discard]:
        """The newest records of discarded tasks."""
        ...

    # -- upkeep ---------------------------------------------------------------------------------------------

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """Records that this worker lives, for `ttl_ms`; 0 takes it off the list. Gives the orders that it has."""
        ...

    async def order(self, worker_id: str, orders: WorkerOrders) -> bool:
        """Leaves orders for a worker, in place of those that it had; False if no such worker is on the list.

        They last as long as its record.
        """
        ...

    async def hold_duty(self, name: str, owner: str, ttl_ms: int) -> Duty:
        """Takes or keeps a duty if nobody else holds it; `ttl_ms` of 0 lets it go.

        The epoch grows when the holder changes, and also when a holder comes back after its time ran out.
        """
        ...

    async def pause(self, queue: str, paused: bool) -> None:
        """Stops or resumes handing out tasks of this queue."""
        ...

    async def set_step(self, queue: str, step_ms: int) -> None:
        """Makes each level of priority worth this much waiting in this queue, for the tasks that wait there too."""
        ...

    # -- schedules ------------------------------------------------------------------------------------------

    async def schedules(self, due_within_ms: int | None = None, limit: int = 1_000) -> DueSchedules:
        """Those whose next tick comes within that time, or with None all, the soonest first and those without one last.

        A paused schedule has no next tick.
        """
        ...

    async def schedule(self, name: str) -> Schedule | None:
        """The schedule of this name; None if there is none."""
        ...

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """Replaces a schedule (with None: removes it) and records tasks, all or nothing, in one transaction.

        Only if its version is still the `expected` one, 0 standing for no such schedule; else False, and nothing is
        done. `StaleEpoch` if an epoch is given and is not the owner's. A task_id or request_id that is known already
        makes no second task. `new.version` is one more than `expected`; the same call again is a success, and does
        nothing.
        """
        ...

    # -- documents ------------------------------------------------------------------------------------------

    async def documents(self, kind: str) -> list[Document]:
        """All documents of a kind, by name."""
        ...

    async def document(self, kind: str, name: str) -> Document | None:
        """The document of this kind and name; None if there is none."""
        ...

    async def put_document(self, kind: str, name: str, value: bytes | None, expected: int) -> bool:
        """Replaces a document (with None: removes it); its version is one more than `expected` then.

        Only if its version is still the `expected` one, 0 standing for no such document; else False, and nothing is
        done. The same call again is a success, and does nothing.
        """
        ...

    # -- deleting, health -----------------------------------------------------------------------------------

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Deletes up to `limit` finished tasks past their retention and kept values whose time is over; how many.

        `StaleEpoch` if not the owner's.
        """
        ...

    async def probe(self) -> list[Finding]:
        """What the store can say about its own health and settings."""
        ...

    # -- partitions -----------------------------------------------------------------------------------------

    async def partition_map(self) -> PartitionMap:
        """The partition map as this store keeps it; version 0 if it was never divided."""
        ...

    async def put_partition_map(self, new: PartitionMap) -> PartitionMap:
        """Keeps a new map if it `follows` the current one; the same again is a success, else `StaleMap`."""
        ...

    async def placement(self) -> Placement:
        """Where new tasks go: the producer puts the answer into their ids. It follows every later change of the map."""
        ...

    def partitions(self) -> Sequence[Store]:
        """The partitions, each as a store of its own, for its upkeep and for looking; a single store is its own."""
        ...

    # -- life -----------------------------------------------------------------------------------------------

    async def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Brings the schema up to this version; names the steps taken, or with `dry_run` those that it would take."""
        ...

    async def close(self) -> None:
        """Ends connections; calls under way are finished first."""
        ...
