"""The store contract: what every engine promises, no method optional, no driver's type in sight.

Every writing method takes a batch, is one round trip, and is durable before it returns. Ids come from the
caller, so a call whose reply was lost is simply made again. All decisions about states are made elsewhere, in
`core/lifecycle.py`; a store executes them. The store's clock decides what is due and what has run out.

`StoreUnavailable` means: repeat with the same ids. The kit in `holdfast.testing.kit` checks these promises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Protocol

import msgspec

from holdfast.core.fairness import QueueShare
from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.task import Claimed, Enqueued, ExpiredClaim, Extension, Hold, NewTask, State, Task, moment
from holdfast.stores.capabilities import Capabilities

#: The wake-up of the maintenance: sent when something becomes due earlier than anything before. No queue has this name.
MAINTENANCE_WAKEUP: Final = "*maintenance"
#: The leadership whose epoch guards promote, requeue and prune.
MAINTENANCE: Final = "maintenance"
#: The largest batch of one call; callers with more split it.
MAX_BATCH: Final = 1_000
#: The largest answer to a reserve, by the sum of its payloads: a slow connection can carry it within a lease.
MAX_RESERVE_BYTES: Final = 4 * 1024 * 1024
#: The largest page of documents, by the sum of their values; a page has at least one document.
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
#: The largest page of tasks.
MAX_PAGE: Final = 1_000
#: The record of a worker that has not announced itself for this long is deleted.
SILENT_WORKER_MS: Final = 86_400_000
#: The partition of a store that has the list of workers.
LIST_OF_WORKERS: Final = 0
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
    #: Hand out no more payload than this, but always the first task; the next one that does not fit ends the answer.
    max_bytes: int = MAX_RESERVE_BYTES
    #: The types that this worker can run; None means any.
    types: frozenset[str] | None = None
    #: The caller knows all that this claim_id holds: claim `max_tasks` more without looking. Never set on a repeat.
    fresh: bool = False
    #: The version of the partition map by which the caller chose this store, 0 for none; see `Store.enqueue`.
    map_version: int = 0


class Reserved(msgspec.Struct, frozen=True):
    """The claimed tasks, in the order in which to start them, and the verdicts on the changes sent along."""

    tasks: list[Claimed]
    verdicts: list[Verdict] = []
    #: A ready task stayed behind because it did not fit into `max_bytes`: ask again. A repeat need not tell.
    cut: bool = False


class Promoted(msgspec.Struct, frozen=True):
    """How many tasks became ready, and how long until the next one is due (None: nothing waits)."""

    count: int
    next_due_in_ms: int | None


class Expired(msgspec.Struct, frozen=True):
    """Claims whose lease has expired, and tasks that no worker started in time, each the oldest first."""

    claims: list[ExpiredClaim]
    unstarted: list[str] = []


class Leadership(msgspec.Struct, frozen=True):
    """Who leads; the epoch grows with every change of leader."""

    name: str
    owner: str
    epoch: int
    held: bool  # by the caller
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
    """Tasks without history, and the cursor of the next page if there is one.

    Cursors are made of what never changes, so they hold when the task that they were made for is gone.
    """

    tasks: list[Task]
    cursor: str | None = None
    #: For each task, the cursor of what comes after it.
    after: list[str] = []


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

    @property
    def started_at(self) -> datetime:
        """When it started, in UTC."""
        return moment(self.started_at_ms)

    @property
    def seen_at(self) -> datetime:
        """When it was heard of last, in UTC."""
        return moment(self.seen_at_ms)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, the same as in `--json`."""
        form: dict[str, Any] = msgspec.to_builtins(self)
        return form


class WorkerOrders(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an operator wants of a worker that runs."""

    #: Tasks at once in each process; None: as it was started.
    concurrency: int | None = None
    #: `drain`: claim nothing more; `stop`: shut down gracefully.
    mode: Literal["run", "drain", "stop"] = "run"


class Document(msgspec.Struct, frozen=True):
    """What is not a task, such as a schedule, a memo or a token: bytes under a kind and a name, with a version."""

    kind: str
    name: str
    value: bytes
    version: int
    #: When something must be done about it (a schedule: its next occurrence), None for never.
    due_at_ms: int | None = None
    #: When it ceases to exist, None for never.
    expires_at_ms: int | None = None


class DocumentPage(msgspec.Struct, frozen=True):
    """Documents, the store's time, and the cursor of the next page if there is one."""

    documents: list[Document]
    now_ms: int
    cursor: str | None = None


class DocumentWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one document as data: a compare-and-set, with guards, and tasks that are enqueued with it."""

    kind: str
    name: str
    #: None removes the document.
    value: bytes | None
    #: The version that it must have now, 0: it must not exist; None: replace what is there, or create it.
    expected: int | None = None
    #: The version that it gets; 0: one more than it had.
    version: int = 0
    due_at_ms: int | None = None
    #: It ceases to exist after this time by the store's clock; None: never.
    ttl_ms: int | None = None
    #: Only for the leader of the maintenance with this epoch; else `StaleEpoch`.
    epoch: int | None = None
    #: Only while this claim is current.
    hold: Hold | None = None
    #: Enqueued in the same transaction, if the write is applied for the first time.
    tasks: Sequence[NewTask] = ()
    #: As of `Store.enqueue`; looked at if there are tasks and no epoch.
    map_version: int = 0


class DocumentResult(msgspec.Struct, frozen=True):
    """Whether the write stands, by this call or by an earlier one with the same content, and what is there now."""

    applied: bool
    document: Document | None = None
    #: Why it was not applied: "version", or what speaks against the claim: "unknown", "stale_claim".
    reason: str = ""


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what has ended is kept in one partition. How long a task is kept is its own: `core.task.kept_ms`."""

    #: At most this many finished tasks of each kind in each partition; those that would be deleted next go first.
    keep: int = 5_000_000
    discards_ms: int = 90 * 86_400_000
    #: While the store is nearly full, keep succeeded and cancelled tasks at most this long: new tasks come before old
    #: results. Dead letters stay.
    nearly_full_ms: int = 60_000


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a store's report on itself."""

    level: Literal["ok", "note", "warning", "problem"]
    check: str
    text: str


class Store(Protocol):
    """Where everything is kept: one URL."""

    #: The URL without its password, for messages.
    url: str
    #: What this engine can do beside the contract.
    capabilities: Capabilities

    # -- the path of a task ---------------------------------------------------------------------------------

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """Records tasks as `ready`, or `scheduled` if their time has not come; one answer each, in order.

        A task_id that is known, or a request_id that is known in its queue, gives the task that is there
        (`created=False`); if queue, type or payload differ, a conflict, and nothing recorded. Duplicates inside the
        batch count as sent one after the other. All or nothing on an error: `StoreFull` records none of them; of a
        batch for several partitions, or of more bytes than a server takes at once, none of that part.

        `map_version` is the version of the partition map by which the caller chose this store, 0 for none. While the
        store's own map is newer, the call is refused with `StaleMap`, and nothing is done; `reserve` likewise.
        """
        ...

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Applies `settle`, then moves up to `max_tasks` from `ready` to `claimed`, in one transaction.

        Only queues that are not paused, only types asked for, lowest rank first, first come first served
        within a rank, and no more than `max_bytes` of payload. The attempt and the delivery of each claimed task
        are counted here. A claim_id that holds tasks already gets exactly those again, with unchanged leases,
        whatever types are asked for; with no types at all, a claim_id gets what it holds and nothing new.
        """
        ...

    async def extend(self, holds: Sequence[Hold], lease_ms: int, *, check_only: bool = False) -> list[Extension]:
        """Gives every current claim at least `lease_ms` from now, records its progress, tells of cancellation.

        A claim whose lease has expired but that was not requeued yet is still current. With `check_only` the answers
        are the same, and nothing is written.
        """
        ...

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Executes each change whose guards hold, as `lifecycle.step` says, in order, one verdict each."""
        ...

    async def wait(self, wakeups: Sequence[str], timeout_ms: int) -> bool:
        """Sleeps until one of these queues (or `MAINTENANCE_WAKEUP`) may have something to do; True if notified.

        Only a hint: a lost wake-up costs latency, never work. One wake-up wakes one waiter. Where wake-ups may be lost
        for longer than `promote` can make up for, it returns sooner than asked for.
        """
        ...

    # -- reading --------------------------------------------------------------------------------------------

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        """The tasks with payload, result and history; None for an id that is not known."""
        ...

    async def find(self, query: Query) -> Page:
        """Tasks that match, newest first, without history, at most `limit`, with cursors to go on.

        Nothing that matches all the time is left out of the pages, whatever comes and goes between two of them. A
        search that looks at many tasks and finds few ends its page early, even empty: only a page without a cursor is
        the last one.
        """
        ...

    async def counts(self) -> list[QueueCounts]:
        """Depths of all queues that have tasks, are paused, or have a priority step of their own, by name."""
        ...

    # -- documents ------------------------------------------------------------------------------------------

    async def documents(
        self,
        kind: str,
        *,
        names: Sequence[str] | None = None,
        due_within_ms: int | None = None,
        cursor: str | None = None,
        limit: int = MAX_BATCH,
    ) -> DocumentPage:
        """Documents of a kind that have not expired, by name, those of `discard` the newest first; with the time.

        With `names`, those of them that exist. With `due_within_ms`, those that are due within that time, the soonest
        first, without a cursor. A page has at most `limit` documents and `MAX_PAGE_BYTES`.
        """
        ...

    async def put(self, write: DocumentWrite) -> DocumentResult:
        """Replaces, creates or removes a document, and enqueues the tasks sent with it, in one transaction.

        Only if its version is the expected one, and the guards hold; else nothing is done. The same write again is a
        success, and does nothing. An expired document counts as absent. A task_id or request_id that is known makes
        no second task. A write with tasks is refused with `StoreFull` by a full store, one without is not.

        A document of kind `queue` takes effect with the write: whether its tasks are handed out, and the priority step
        also for those that wait. One of kind `map` is the partition map of this partition: its version is compared
        with the `map_version` of every call. Documents of kind `discard` are written by the store.
        """
        ...

    # -- workers and leadership -----------------------------------------------------------------------------

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        """Records that this worker lives, for `ttl_ms`; 0 takes it off the list. Gives its document of kind `orders`.

        A worker that leaves the list takes its orders along.
        """
        ...

    async def workers(self) -> list[WorkerRecord]:
        """Workers heard of and not yet pruned, by id."""
        ...

    async def lead(self, name: str, owner: str | None, ttl_ms: int = 0) -> Leadership:
        """Takes or renews a leadership that no other owner has; `ttl_ms` of 0 lets it go; owner None only looks.

        The epoch grows when the leader changes, and also when a leader comes back after its time ran out.
        """
        ...

    # -- maintenance of one partition -----------------------------------------------------------------------

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        """Moves up to `limit` due tasks to `ready`, never one before its time; `StaleEpoch` if not the leader's.

        Also notifies every queue in which ready tasks wait: a wake-up whose receiver died is made up for here, so that
        idle workers need not look by themselves all the time.
        """
        ...

    async def expired(self, limit: int = 1_000) -> Expired:
        """Claims whose lease has expired, and tasks that were not started in time, up to `limit` of each.

        Not started in time: no worker ever began it, and `policy.expires_ms` have passed since its creation, by the
        store's clock. Changes no task.
        """
        ...

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Deletes up to `limit` finished tasks and expired documents; how many. `StaleEpoch` if not the leader's.

        A finished task is kept for `core.task.kept_ms` of its own policy, whichever process prunes.
        """
        ...

    # -- life -----------------------------------------------------------------------------------------------

    async def placement(self) -> Placement:
        """Where new tasks go: the producer puts the answer into their ids. It follows every later change of the map."""
        ...

    async def partitions(self) -> Sequence[Store]:
        """The partitions, each as a store of its own, for maintenance and reading; a single store is its own."""
        ...

    async def probe(self) -> list[Finding]:
        """What the store can say about its own health and settings."""
        ...

    async def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Brings the schema up to this version; names the steps taken, or with `dry_run` those that it would take."""
        ...

    async def close(self) -> None:
        """Ends connections; calls under way are finished first."""
        ...
