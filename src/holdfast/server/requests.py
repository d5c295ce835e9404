"""Bodies of requests. Unknown fields are refused."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from holdfast.core.durations import LONGEST_MS
from holdfast.core.priority import HIGHEST, LOWEST
from holdfast.core.retry import MAX_ATTEMPTS
from holdfast.core.task import MAX_HEADERS
from holdfast.stores.contract import MAX_BATCH
from holdfast.stores.remote import limits

NAME: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$"
TASK_ID: Final = r"^[0-9a-f]{32}$"
#: No control characters: not every store can search for them.
ID: Final = r"^[^\x00-\x1f\x7f]{1,200}$"
#: Text without NUL, which not every store can keep.
STORABLE: Final = r"^[^\x00]*$"
ERROR_NAME: Final = r"^[^\x00]{1,200}$"
#: Keys and request_ids.
VISIBLE: Final = r"^[\x21-\x7e]{1,200}$"
CURSOR: Final = r"^[\x21-\x7e]*$"

#: Only for the document: core/durations.py says more clearly what is wrong.
_NUMBER: Final = r"[0-9]{1,6}(\.[0-9]{1,3})?"
DURATION: Final = rf"^({_NUMBER}|({_NUMBER}(ms|s|m)|[0-9]{{1,5}}h|[0-9]{{1,4}}d|[0-9]{{1,3}}w){{1,3}})$"
#: The same for times that are not zero, and for leases: those that are surely within the range.
TIME_LIMIT: Final = r"^([1-9][0-9]{0,5}(ms|s|m)?|[1-9][0-9]{0,4}h|[1-9][0-9]{0,3}d|[1-9][0-9]{0,2}w)$"
LEASE: Final = r"^([5-9][0-9]{2}ms|[1-9][0-9]{3,6}ms|[1-9][0-9]{0,3}s|[1-9][0-9]{0,2}m|([1-9]|1[0-9]|2[0-4])h)$"
TTL: Final = r"^([0-9]{1,6}ms|[0-9]{1,3}s?|[0-5]?[0-9]m|[01]h)$"


def _whole(pattern: str, description: str | None = None) -> Meta:
    """All of the text fits: in Python, `$` is also before a newline at the end, in JSON Schema it is not."""
    return Meta(
        pattern=pattern.removesuffix("$") + r"\Z", description=description, extra_json_schema={"pattern": pattern}
    )


TaskId = Annotated[str, _whole(TASK_ID, "32 hex digits, as enqueue gives them.")]
Queue = Annotated[str, _whole(NAME, "The name of a queue.")]
TypeName = Annotated[str, _whole(NAME, "The name of a task type.")]
RequestId = Annotated[str, _whole(VISIBLE, "The same one in a queue gives the same task.")]
Id = Annotated[str, _whole(ID)]
#: Of an error that has happened: any, since a refused failure would leave the task claimed.
ErrorType = Annotated[
    str, Meta(min_length=1, max_length=limits.LONGEST_ID, description="The class of an error, with its module.")
]
#: In a policy.
ErrorName = Annotated[str, _whole(ERROR_NAME, "The class of an error, with its module.")]
Storable = Annotated[str, _whole(STORABLE)]
Token = Annotated[str, Meta(min_length=1, max_length=300, description="The token of the claim, as reserve gave it.")]
Reason = Annotated[str, Meta(min_length=1, max_length=500)]
Priority = Annotated[int, Meta(ge=LOWEST, le=HIGHEST, description="Higher is sooner.")]
Duration = Annotated[
    Annotated[float, Meta(ge=0, le=LONGEST_MS / 1000)] | Annotated[str, Meta(extra_json_schema={"pattern": DURATION})],
    Meta(description='Seconds, or text such as "250ms", "30s", "10m", "1h30m".', examples=["30s", 1.5]),
]
TimeLimit = Annotated[
    Annotated[float, Meta(ge=0.001, le=LONGEST_MS / 1000)]
    | Annotated[str, Meta(extra_json_schema={"pattern": TIME_LIMIT})],
    Meta(description='Seconds, or text such as "30s", "10m", "2h"; not zero.', examples=["5m", 90]),
]
KeptFor = Annotated[
    Annotated[float, Meta(ge=0, le=LONGEST_MS / 1000)] | Annotated[str, Meta(extra_json_schema={"pattern": DURATION})],
    Meta(description="How long the task is kept after its end, or as a dead letter; else as the server says."),
]
Lease = Annotated[
    Annotated[float, Meta(ge=limits.SHORTEST_LEASE_MS / 1000, le=limits.LONGEST_LEASE_MS / 1000)]
    | Annotated[str, Meta(extra_json_schema={"pattern": LEASE})],
    Meta(description='From half a second to a day: seconds, or text such as "30s", "5m".', examples=["30s", 60]),
]
#: Time to live of a worker.
Ttl = Annotated[
    Annotated[float, Meta(ge=0, le=limits.LONGEST_TTL_MS / 1000)]
    | Annotated[str, Meta(extra_json_schema={"pattern": TTL})],
    Meta(description='Up to an hour: seconds, or text such as "60s", "5m".', examples=["60s", 90]),
]
Headers = Annotated[
    dict[Storable, Storable],
    Meta(max_length=MAX_HEADERS, description="8 KiB together; the arguments are for data."),
]
Time = Annotated[datetime, Meta(tz=True, description="With its offset: 2030-01-31T09:00:00+01:00.")]
Json = Annotated[Raw, Meta(description="Any JSON value; kept byte for byte.")]
JsonObject = Annotated[
    Raw, Meta(description="A JSON object; kept byte for byte.", extra_json_schema={"type": "object"})
]


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every request has in common."""


class Nothing(Body, frozen=True, kw_only=True):
    """An empty object."""


# -- enqueue -----------------------------------------------------------------------------------------------------


class RetryBody(Body, frozen=True, kw_only=True):
    """How a task is retried; fields that are left out have their defaults."""

    max_attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)] = 5
    base: Duration = "30s"
    cap: Duration = "30m"
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.5
    give_up_on: Annotated[tuple[ErrorName, ...], Meta(max_length=limits.MAX_ERROR_TYPES)] = ()
    retry_on: Annotated[tuple[ErrorName, ...], Meta(max_length=limits.MAX_ERROR_TYPES)] = ()
    dead_letter: bool = True


class TaskBody(Body, frozen=True, kw_only=True):
    """A new task."""

    type: TypeName
    arguments: JsonObject | UnsetType = UNSET
    queue: Queue | UnsetType = UNSET
    task_id: TaskId | UnsetType = UNSET
    request_id: RequestId | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    delay: Duration | UnsetType = UNSET
    run_at: Time | UnsetType = UNSET
    headers: Headers | UnsetType = UNSET
    retry: RetryBody | UnsetType = UNSET
    timeout: TimeLimit | UnsetType = UNSET
    hard_timeout: TimeLimit | UnsetType = UNSET
    expires: TimeLimit | UnsetType = UNSET
    result_ttl: KeptFor | UnsetType = UNSET
    dead_letter_ttl: KeptFor | UnsetType = UNSET


class TasksBody(Body, frozen=True, kw_only=True):
    """Several new tasks."""

    tasks: Annotated[list[TaskBody], Meta(max_length=MAX_BATCH)]


# -- settle ------------------------------------------------------------------------------------------------------


class ErrorBody(Body, frozen=True, kw_only=True):
    """An error as text."""

    type: ErrorType
    message: Annotated[str, Meta(max_length=limits.LONGEST_TEXT)] = ""
    traceback: Annotated[str, Meta(max_length=limits.LONGEST_TEXT)] = ""


class AckBody(Body, frozen=True, kw_only=True):
    """The attempt succeeded."""

    token: Token
    result: Json | UnsetType = UNSET


class FailBody(Body, frozen=True, kw_only=True):
    """The attempt failed; the policy of the task says whether another one follows, and when."""

    token: Token
    error: ErrorBody
    retryable: bool = True
    retry_in: Duration | UnsetType = UNSET


class SnoozeBody(Body, frozen=True, kw_only=True):
    """Run it again later; no attempt is used up."""

    token: Token
    delay: Duration


class ReleaseBody(Body, frozen=True, kw_only=True):
    """Releases the task unfinished; no attempt is used up."""

    token: Token


class StopBody(Body, frozen=True, kw_only=True):
    """The run ends the task as cancelled."""

    token: Token
    reason: Reason | UnsetType = UNSET


class CancelBody(Body, frozen=True, kw_only=True):
    """A waiting task never runs; a running one is told."""

    reason: Reason = "cancelled over HTTP"


class PrioritizeBody(Body, frozen=True, kw_only=True):
    """Another priority for a task that waits."""

    priority: Priority


class DiscardBody(Body, frozen=True, kw_only=True):
    """Deleted, with a record of payload and reason."""

    reason: Reason


class AckChange(AckBody, frozen=True, kw_only=True, tag_field="event", tag="ack"):
    """The attempt succeeded."""

    task_id: TaskId


class FailChange(FailBody, frozen=True, kw_only=True, tag_field="event", tag="fail"):
    """The attempt failed; the policy of the task says whether another one follows, and when."""

    task_id: TaskId


class SnoozeChange(SnoozeBody, frozen=True, kw_only=True, tag_field="event", tag="snooze"):
    """Run it again later; no attempt is used up."""

    task_id: TaskId


class ReleaseChange(ReleaseBody, frozen=True, kw_only=True, tag_field="event", tag="release"):
    """Releases the task unfinished; no attempt is used up."""

    task_id: TaskId


class StopChange(StopBody, frozen=True, kw_only=True, tag_field="event", tag="stop"):
    """The run ends the task as cancelled."""

    task_id: TaskId


class CancelChange(CancelBody, frozen=True, kw_only=True, tag_field="event", tag="cancel"):
    """A waiting task never runs; a running one is told."""

    task_id: TaskId


class PrioritizeChange(PrioritizeBody, frozen=True, kw_only=True, tag_field="event", tag="prioritize"):
    """Another priority for a task that waits."""

    task_id: TaskId


class ReplayChange(Body, frozen=True, kw_only=True, tag_field="event", tag="replay"):
    """A dead letter is put back with fresh attempts."""

    task_id: TaskId


class DiscardChange(DiscardBody, frozen=True, kw_only=True, tag_field="event", tag="discard"):
    """A dead letter is deleted, with a record of payload and reason."""

    task_id: TaskId


AnyChange = (
    AckChange
    | FailChange
    | SnoozeChange
    | ReleaseChange
    | StopChange
    | CancelChange
    | PrioritizeChange
    | ReplayChange
    | DiscardChange
)
Changes = Annotated[list[AnyChange], Meta(max_length=MAX_BATCH)]


class SettleBody(Body, frozen=True, kw_only=True):
    """Any changes, each of them about one task."""

    changes: Changes


# -- reserve and extend ------------------------------------------------------------------------------------------


class ShareBody(Body, frozen=True, kw_only=True):
    """At most this many tasks from this queue, before the next queue is tried."""

    queue: Queue
    limit: Annotated[int, Meta(ge=0, le=MAX_BATCH)]


class ReserveBody(Body, frozen=True, kw_only=True):
    """A worker's request for tasks."""

    worker_id: Id
    #: In the order in which they are tried.
    queues: Annotated[list[Queue | ShareBody], Meta(min_length=1, max_length=limits.MAX_QUEUES)]
    max_tasks: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 1
    lease: Lease = "30s"
    wait: Duration = 0
    types: Annotated[list[TypeName], Meta(max_length=limits.MAX_TYPES)] | None = None
    claim_id: Id | UnsetType = UNSET
    #: This claim_id was never sent before, so it holds no tasks yet.
    fresh: bool = False
    settle: Changes = []


class ExtendBody(Body, frozen=True, kw_only=True):
    """More time for a claim, and word of how far it is."""

    token: Token
    lease: Lease = "30s"
    progress: JsonObject | UnsetType = UNSET


class HoldBody(Body, frozen=True, kw_only=True):
    """One claim."""

    task_id: TaskId
    token: Token
    progress: JsonObject | UnsetType = UNSET


class ExtendManyBody(Body, frozen=True, kw_only=True):
    """More time for many claims."""

    holds: Annotated[list[HoldBody], Meta(max_length=MAX_BATCH)]
    lease: Lease = "30s"
