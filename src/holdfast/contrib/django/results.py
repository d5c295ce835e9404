"""Tasks as Django shows them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from holdfast.contrib.django.arguments import as_given, positional
from holdfast.contrib.django.compat import InvalidTask, TaskError, TaskResult, TaskResultStatus
from holdfast.core.task import FINAL_STATES, Attempt, State, Task
from holdfast.producer.task_type import TaskType

#: The only trace of `run_after` in a task whose time has come.
RUN_AFTER: Final = "django-run-after"
#: Whatever waits is ready to Django, for a retry too, and whatever has ended without success has failed.
_STATUS: Final = dict.fromkeys(FINAL_STATES, "FAILED") | {State.CLAIMED: "RUNNING", State.SUCCEEDED: "SUCCESSFUL"}


def status_of(state: State) -> Any:
    """One of the four that Django has."""
    return TaskResultStatus[_STATUS.get(state, "READY")]


def new_result(task: Any, alias: str, args: Any, kwargs: Any, **more: Any) -> Any:
    """The result as the caller knows it when it makes the call; its arguments are what JSON makes of them."""
    known: dict[str, Any] = {
        "id": "",
        "status": TaskResultStatus.READY,
        "enqueued_at": None,
        "started_at": None,
        "finished_at": None,
        "last_attempted_at": None,
        "errors": [],
        "worker_ids": [],
    }
    return TaskResult(task=task, backend=alias, args=args, kwargs=kwargs, **(known | more))


def result_of(task: Any, alias: str, record: Task, task_type: TaskType[..., Any]) -> Any:
    """What the store knows of a task; `NotGenuine` or `UnknownKey` if its arguments or its result cannot be opened."""
    link = task_type.recorder.link
    args, kwargs = as_given(task, positional(record.headers), *task_type.codec.decode(link.opened_arguments(record)))
    result = new_result(
        as_called(task, alias, record.queue, record.priority, record.headers),
        alias,
        args,
        kwargs,
        id=record.task_id,
        status=status_of(record.state),
        enqueued_at=moment(record.created_at_ms),
        finished_at=None if record.finished_at_ms is None else moment(record.finished_at_ms),
        **runs_of(record),
    )
    if record.state is State.SUCCEEDED and record.result is not None:
        note(result, _return_value=task_type.codec.decode_result(link.opened(record, record.result)))
    return result


def runs_of(record: Task) -> dict[str, Any]:
    """What a result has of the runs of its task, the present one included; needs neither arguments nor keys."""
    runs = [(run.worker_id, run.started_at_ms) for run in record.history]
    if record.state is State.CLAIMED and record.claimed_at_ms is not None:
        runs.append((record.worker_id or "", record.claimed_at_ms))
    return {
        "started_at": moment(runs[0][1]) if runs else None,
        "last_attempted_at": moment(runs[-1][1]) if runs else None,
        "errors": [_error(run) for run in record.history if run.error is not None],
        "worker_ids": [worker_id for worker_id, _ in runs],
    }


def as_called(task: Any, alias: str, queue: str, priority: int, headers: dict[str, str]) -> Any:
    """The task with the options of one call."""
    run_after = headers.get(RUN_AFTER)
    options: dict[str, Any] = {"backend": alias, "queue_name": queue, "priority": priority}
    try:
        if run_after is not None:
            options["run_after"] = datetime.fromisoformat(run_after)
        return task.using(**options)
    except (InvalidTask, ValueError):  # the settings have changed since, or the header is not ours
        return task


def note(result: Any, **changes: Any) -> None:
    """Changes a result, which is frozen for all code except backends."""
    for name, value in changes.items():
        object.__setattr__(result, name, value)


def moment(at_ms: int) -> datetime:
    """A time as Django has it: with a time zone, or without if the settings say so."""
    aware = datetime.fromtimestamp(at_ms / 1000, UTC)
    return aware if settings.USE_TZ else timezone.make_naive(aware)


def _error(run: Attempt) -> Any:
    error = run.error
    if error is None:
        raise ValueError(run)
    # The end of a process has a name, and no class.
    path = error.type if "." in error.type else "holdfast.errors.ClaimLost"
    return TaskError(exception_class_path=path, traceback=error.traceback or f"{error.type}: {error.message}")
