"""A task as an app sees it: times as datetimes, arguments, result and progress decoded, and one JSON form."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.core.payload import is_encrypted
from holdfast.core.retry import RunPolicy
from holdfast.core.task import (
    FINAL_STATES,
    Attempt,
    Failure,
    LogLine,
    Progress,
    State,
    Task,
    kept_log,
    moment,
    shown_progress,
)
from holdfast.errors import NotGenuine, UnknownKey

if TYPE_CHECKING:
    from holdfast.producer.portal import StoreLink

#: How pydantic names the JSON form in a JSON schema.
_TITLE: Final = "Task"


class TaskInfo:
    """One task, as it was when the store was asked; times are in UTC.

    `to_dict()` is its JSON form, the same as in HTTP and in `--json`; routes of FastAPI may return a `TaskInfo`.
    """

    __slots__ = ("_opened", "record")

    def __init__(self, record: Task, opened: Task | None = None) -> None:
        #: The record of the store.
        self.record = record
        #: The same, decrypted where the app has the keys.
        self._opened = opened or record

    @property
    def task_id(self) -> str:
        """The id."""
        return self.record.task_id

    @property
    def type(self) -> str:
        """The name of the task type."""
        return self.record.type

    @property
    def queue(self) -> str:
        """The queue that it was enqueued in."""
        return self.record.queue

    @property
    def state(self) -> State:
        """The state, which compares equal to its name: `task.state == "succeeded"`."""
        return self.record.state

    @property
    def is_finished(self) -> bool:
        """Whether it has ended: succeeded, failed, dead-lettered or cancelled."""
        return self.record.state in FINAL_STATES

    @property
    def priority(self) -> int:
        """The priority, from -100 to 100."""
        return self.record.priority

    @property
    def attempt(self) -> int:
        """Attempts used, the running one included."""
        return self.record.attempt

    @property
    def deliveries(self) -> int:
        """How often a worker has claimed it; snoozed and lost runs count too."""
        return self.record.deliveries

    @property
    def created_at(self) -> datetime:
        """When it was enqueued."""
        return moment(self.record.created_at_ms)

    @property
    def run_at(self) -> datetime:
        """When it may run, or became ready."""
        return moment(self.record.run_at_ms)

    @property
    def claimed_at(self) -> datetime | None:
        """When the running attempt was claimed."""
        return _moment_or_none(self.record.claimed_at_ms)

    @property
    def lease_expires_at(self) -> datetime | None:
        """When the claim of the running attempt expires unless it is renewed."""
        return _moment_or_none(self.record.lease_expires_at_ms)

    @property
    def finished_at(self) -> datetime | None:
        """When it ended."""
        return _moment_or_none(self.record.finished_at_ms)

    @property
    def worker_id(self) -> str | None:
        """The worker that runs it."""
        return self.record.worker_id

    @property
    def cancel_requested(self) -> bool:
        """Whether the running attempt was told to stop."""
        return self.record.cancel_requested

    @property
    def reason(self) -> str | None:
        """Why it is dead-lettered, failed or cancelled."""
        return self.record.reason

    @property
    def request_id(self) -> str | None:
        """The request_id that it was enqueued with."""
        return self.record.request_id

    @property
    def headers(self) -> dict[str, str]:
        """The headers that it was enqueued with."""
        return self.record.headers

    @property
    def policy(self) -> RunPolicy:
        """How often, how long and until when it may run."""
        return self.record.policy

    @property
    def args(self) -> dict[str, Any]:
        """The arguments by name, as JSON values."""
        value = _json_value(self._opened.payload)
        return value if isinstance(value, dict) else {}

    @property
    def result(self) -> Any:
        """What the function returned, as a JSON value; None before it has. `handle.result()` gives it its type."""
        return _json_value(self._opened.result)

    @property
    def progress(self) -> Progress:
        """The last progress that the run reported; of a succeeded task, the log alone."""
        return shown_progress(self.record)

    @property
    def log(self) -> tuple[LogLine, ...]:
        """The latest log lines of its runs, the first one first."""
        return kept_log(self.record)

    @property
    def history(self) -> tuple[Attempt, ...]:
        """The runs that have ended, the first one first."""
        return self.record.history

    @property
    def error(self) -> Failure | None:
        """The error of the last attempt that had one: `error.type`, `error.message`, `error.traceback`."""
        from holdfast.admin.inspect import last_failure

        return last_failure(self.record)

    # -- the JSON form --------------------------------------------------------------------------------------

    def to_json(self) -> bytes:
        """The JSON form as bytes; times are milliseconds since 1970."""
        from holdfast.admin.views import task_view

        return msgspec.json.encode(task_view(self._opened, history=True))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form as a dict of JSON values; times are milliseconds since 1970."""
        form: dict[str, Any] = msgspec.json.decode(self.to_json())
        return form

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """As pairs, for `dict(task)`, which FastAPI makes of what a route returns."""
        return iter(self.to_dict().items())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """For pydantic: an instance, serialised in its JSON form."""
        del source, handler
        from pydantic_core import core_schema

        form = core_schema.plain_serializer_function_ser_schema(TaskInfo.to_dict)
        return core_schema.is_instance_schema(cls, serialization=form)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        """For OpenAPI: an object; `docs/http.md` has its fields."""
        del schema, handler
        return {"type": "object", "title": _TITLE, "additionalProperties": True}

    # -- a value --------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<TaskInfo {self.task_id} {self.type} {self.state}>"

    def __eq__(self, other: object) -> bool:
        return self.record == other.record if isinstance(other, TaskInfo) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.record.task_id)


def task_info(link: StoreLink, task: Task) -> TaskInfo:
    """The task as the app sees it, decrypted where it has the keys."""
    opened: dict[str, bytes] = {}
    try:
        if is_encrypted(task.payload):
            opened["payload"] = link.opened_arguments(task)
        if task.result is not None and is_encrypted(task.result):
            opened["result"] = link.opened(task, task.result)
    except (UnknownKey, NotGenuine):
        return TaskInfo(task)  # shown as encrypted, with its length
    return TaskInfo(task, msgspec.structs.replace(task, **opened) if opened else None)


def _moment_or_none(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else moment(milliseconds)


def _json_value(data: bytes | None) -> Any:
    from holdfast.admin.inspect import json_value

    return json_value(data)
