"""The store contract over HTTP: `POST /v1/store/{method}`, one request and one answer for each method.

The request is a JSON object with the arguments by name, the answer is the JSON of what the method returns. Bytes
travel as base64, which is how msgspec writes them, so that they arrive as they were sent, JSON or not. An error
answers as a problem: wire/problems.py.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Final, Generic, TypeVar

import msgspec
from msgspec import Meta

from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.partitions import PartitionMap
from holdfast.core.schedule import Schedule
from holdfast.core.task import Enqueued, Extension, Hold, Lapsed, NewTask, Task
from holdfast.stores.contract import (
    Discard,
    Document,
    DueSchedules,
    Duty,
    Finding,
    Kept,
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
from holdfast.wire.limits import LARGEST_EXACT

Q = TypeVar("Q")
A = TypeVar("A")

#: Where the calls are, followed by the name of the method.
STORE_PATH: Final = "/v1/store/"
#: Query parameter: the partition that is meant, by its number; without it, the store as a whole.
PARTITION: Final = "partition"
#: Query parameter: the `map_version` of the caller, if it is not 0; only with a partition.
MAP_VERSION: Final = "map_version"

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
#: The same, or that of nobody: a store over several sends it to those that are not meant.
EpochNumber = Annotated[int, Meta(ge=-1, le=LARGEST_EXACT)]


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of one method, by their names in the contract."""


class NoArguments(_Request, frozen=True):
    """Of a method that takes none."""


class Enqueue(_Request, frozen=True):
    """`enqueue`."""

    tasks: list[NewTask]


class Reserve(_Request, frozen=True):
    """`reserve`."""

    request: ReserveRequest
    settle: list[Change] = []


class Extend(_Request, frozen=True):
    """`extend`."""

    holds: list[Hold]
    lease_ms: int


class Apply(_Request, frozen=True):
    """`apply`."""

    changes: list[Change]


class Keep(_Request, frozen=True):
    """`keep`."""

    key: str
    value: bytes
    ttl_ms: int
    hold: Hold | None = None


class Key(_Request, frozen=True):
    """`kept`."""

    key: str


class Epoch(_Request, frozen=True):
    """`promote`."""

    epoch: EpochNumber
    limit: int = 1_000


class Limit(_Request, frozen=True):
    """`expired`, `overdue`, `discards`."""

    limit: int = 1_000


class Wait(_Request, frozen=True):
    """`wait`; answered sooner than asked for if that is longer than the gateway lets a request wait."""

    bells: list[str]
    timeout_ms: int


class TaskIds(_Request, frozen=True):
    """`get`."""

    task_ids: list[str]


class Find(_Request, frozen=True):
    """`find`."""

    query: Query


class Announce(_Request, frozen=True):
    """`announce`."""

    worker: WorkerRecord
    ttl_ms: int


class Order(_Request, frozen=True):
    """`order`."""

    worker_id: str
    orders: WorkerOrders


class HoldDuty(_Request, frozen=True):
    """`hold_duty`."""

    name: str
    owner: str
    ttl_ms: int


class Pause(_Request, frozen=True):
    """`pause`."""

    queue: str
    paused: bool


class SetStep(_Request, frozen=True):
    """`set_step`."""

    queue: str
    step_ms: int


class Schedules(_Request, frozen=True):
    """`schedules`."""

    due_within_ms: int | None = None
    limit: int = 1_000


class Name(_Request, frozen=True):
    """`schedule`."""

    name: str


class PutSchedule(_Request, frozen=True):
    """`put_schedule`."""

    name: str
    new: Schedule | None
    expected: Count
    tasks: list[NewTask] = []
    epoch: EpochNumber | None = None


class Kind(_Request, frozen=True):
    """`documents`."""

    kind: str


class DocumentName(_Request, frozen=True):
    """`document`."""

    kind: str
    name: str


class PutDocument(_Request, frozen=True):
    """`put_document`."""

    kind: str
    name: str
    value: bytes | None
    expected: Count


class Prune(_Request, frozen=True):
    """`prune`."""

    epoch: EpochNumber
    retention: Retention
    limit: int = 1_000


class NewMap(_Request, frozen=True):
    """`put_partition_map`."""

    new: PartitionMap


class Migrate(_Request, frozen=True):
    """`migrate`."""

    dry_run: bool = False


ENQUEUE: Final = StoreCall("enqueue", Enqueue, list[Enqueued])
RESERVE: Final = StoreCall("reserve", Reserve, Reserved)
EXTEND: Final = StoreCall("extend", Extend, list[Extension])
APPLY: Final = StoreCall("apply", Apply, list[Verdict])
KEEP: Final = StoreCall("keep", Keep, Kept)
PROMOTE: Final = StoreCall("promote", Epoch, Promoted)
EXPIRED: Final = StoreCall("expired", Limit, list[Lapsed])
OVERDUE: Final = StoreCall("overdue", Limit, list[str])
WAIT: Final = StoreCall("wait", Wait, bool)
GET: Final = StoreCall("get", TaskIds, list[Task | None])
KEPT: Final[StoreCall[Key, bytes | None]] = StoreCall("kept", Key, bytes | None)
FIND: Final = StoreCall("find", Find, Page)
COUNTS: Final = StoreCall("counts", NoArguments, list[QueueCounts])
WORKERS: Final = StoreCall("workers", NoArguments, list[WorkerRecord])
DISCARDS: Final = StoreCall("discards", Limit, list[Discard])
ANNOUNCE: Final[StoreCall[Announce, WorkerOrders | None]] = StoreCall("announce", Announce, WorkerOrders | None)
ORDER: Final = StoreCall("order", Order, bool)
HOLD_DUTY: Final = StoreCall("hold_duty", HoldDuty, Duty)
PAUSE: Final = StoreCall("pause", Pause, NoneType)
SET_STEP: Final = StoreCall("set_step", SetStep, NoneType)
SCHEDULES: Final = StoreCall("schedules", Schedules, DueSchedules)
SCHEDULE: Final[StoreCall[Name, Schedule | None]] = StoreCall("schedule", Name, Schedule | None)
PUT_SCHEDULE: Final = StoreCall("put_schedule", PutSchedule, bool)
DOCUMENTS: Final = StoreCall("documents", Kind, list[Document])
DOCUMENT: Final[StoreCall[DocumentName, Document | None]] = StoreCall("document", DocumentName, Document | None)
PUT_DOCUMENT: Final = StoreCall("put_document", PutDocument, bool)
PRUNE: Final = StoreCall("prune", Prune, int)
PROBE: Final = StoreCall("probe", NoArguments, list[Finding])
PARTITION_MAP: Final = StoreCall("partition_map", NoArguments, PartitionMap)
PUT_PARTITION_MAP: Final = StoreCall("put_partition_map", NewMap, PartitionMap)
#: The partitions by their URLs without passwords, in order.
PARTITIONS: Final = StoreCall("partitions", NoArguments, list[str])
MIGRATE: Final = StoreCall("migrate", Migrate, list[str])
