"""The store contract over HTTP: `POST /v1/store/{method}`, one request and one answer for each method.

The request is a JSON object with the arguments by name, the answer is the JSON of what the method returns. Bytes
travel as base64, which is how msgspec writes them, so that they arrive as they were sent, JSON or not. An error
is answered as a problem: `problems.py`.
"""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Final, Generic, TypeVar

import msgspec
from msgspec import Meta

from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.task import Enqueued, Extension, Hold, NewTask, Task
from holdfast.stores.contract import (
    MAX_BATCH,
    DocumentPage,
    DocumentResult,
    DocumentWrite,
    Expired,
    Finding,
    Leadership,
    Page,
    Promoted,
    Query,
    QueueCounts,
    Reserved,
    Retention,
    WorkerOrders,
    WorkerRecord,
)
from holdfast.stores.contract import Reserve as ReserveRequest
from holdfast.stores.remote.limits import LARGEST_EXACT

Q = TypeVar("Q")
A = TypeVar("A")

#: Where the calls are, followed by the name of the method.
STORE_PATH: Final = "/v1/store/"
#: Query parameter: the partition that is meant, by its number; without it, the store as a whole.
PARTITION: Final = "partition"
#: Request header: `1` asks for an answer without the partitions that do not answer.
IN_PART: Final = "Holdfast-In-Part"
#: Header of such an answer: the numbers of the partitions that it leaves out, separated by commas.
LEFT_OUT: Final = "Holdfast-Left-Out"

_encode = msgspec.json.Encoder().encode


class StoreCall(Generic[Q, A]):
    """One method of the contract: its name, and what it takes and gives."""

    def __init__(self, method: str, request: type[Q], answer: type[A] | UnionType) -> None:
        self.method = method
        self.path = f"{STORE_PATH}{method}"
        self.request = request
        self.answer = answer
        self._answers: msgspec.json.Decoder[A] = msgspec.json.Decoder(answer)

    def write_request(self, request: Q) -> bytes:
        """The body of the request."""
        return _encode(request)

    def read_answer(self, body: bytes) -> A:
        """The answer."""
        return self._answers.decode(body)


#: Of epochs and versions: more than any clock, and still exact wherever numbers are floats.
Count = Annotated[int, Meta(ge=0, le=LARGEST_EXACT)]
#: The same, or one that no leader has: a store over several sends it to those that are not meant.
EpochNumber = Annotated[int, Meta(ge=-1, le=LARGEST_EXACT)]


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of one method, by their names in the contract."""


class NoArguments(_Request, frozen=True):
    """Of a method that takes none."""


class Enqueue(_Request, frozen=True):
    """`enqueue`."""

    tasks: list[NewTask]
    map_version: Count = 0


class Reserve(_Request, frozen=True):
    """`reserve`."""

    request: ReserveRequest
    settle: list[Change] = []


class Extend(_Request, frozen=True):
    """`extend`."""

    holds: list[Hold]
    lease_ms: int
    check_only: bool = False


class Apply(_Request, frozen=True):
    """`apply`."""

    changes: list[Change]


class Wait(_Request, frozen=True):
    """`wait`; answered sooner than asked for if that is longer than the server lets a request wait."""

    wakeups: list[str]
    timeout_ms: int


class TaskIds(_Request, frozen=True):
    """`get`."""

    task_ids: list[str]


class Find(_Request, frozen=True):
    """`find`."""

    query: Query


class Documents(_Request, frozen=True):
    """`documents`."""

    kind: str
    names: list[str] | None = None
    due_within_ms: int | None = None
    cursor: str | None = None
    limit: int = MAX_BATCH


class Put(DocumentWrite, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`put`: the fields of the write itself, so that a large batch of tasks with it is decoded one by one."""

    expected: Count | None = None
    version: Count = 0
    epoch: EpochNumber | None = None
    map_version: Count = 0


class Announce(_Request, frozen=True):
    """`announce`."""

    worker: WorkerRecord
    ttl_ms: int


class Lead(_Request, frozen=True):
    """`lead`."""

    name: str
    owner: str | None = None
    ttl_ms: int = 0


class Epoch(_Request, frozen=True):
    """`promote`."""

    epoch: EpochNumber
    limit: int = MAX_BATCH


class Limit(_Request, frozen=True):
    """`expired`."""

    limit: int = MAX_BATCH


class Prune(_Request, frozen=True):
    """`prune`."""

    epoch: EpochNumber
    retention: Retention
    limit: int = MAX_BATCH


class Migrate(_Request, frozen=True):
    """`migrate`."""

    dry_run: bool = False


ENQUEUE: Final = StoreCall("enqueue", Enqueue, list[Enqueued])
RESERVE: Final = StoreCall("reserve", Reserve, Reserved)
EXTEND: Final = StoreCall("extend", Extend, list[Extension])
APPLY: Final = StoreCall("apply", Apply, list[Verdict])
WAIT: Final = StoreCall("wait", Wait, bool)
GET: Final = StoreCall("get", TaskIds, list[Task | None])
FIND: Final = StoreCall("find", Find, Page)
COUNTS: Final = StoreCall("counts", NoArguments, list[QueueCounts])
DOCUMENTS: Final = StoreCall("documents", Documents, DocumentPage)
PUT: Final[StoreCall[DocumentWrite, DocumentResult]] = StoreCall("put", Put, DocumentResult)
ANNOUNCE: Final[StoreCall[Announce, WorkerOrders | None]] = StoreCall("announce", Announce, WorkerOrders | None)
WORKERS: Final = StoreCall("workers", NoArguments, list[WorkerRecord])
LEAD: Final = StoreCall("lead", Lead, Leadership)
PROMOTE: Final = StoreCall("promote", Epoch, Promoted)
EXPIRED: Final = StoreCall("expired", Limit, Expired)
PRUNE: Final = StoreCall("prune", Prune, int)
#: The partitions by their URLs without passwords, in order.
PARTITIONS: Final = StoreCall("partitions", NoArguments, list[str])
PROBE: Final = StoreCall("probe", NoArguments, list[Finding])
MIGRATE: Final = StoreCall("migrate", Migrate, list[str])
