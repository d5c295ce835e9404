"""One task, for people."""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.admin.inspect import json_value, last_failure
from holdfast.admin.text import about_ms, first_line, progress_text
from holdfast.cli import output
from holdfast.cli.options import iso_time
from holdfast.core.durations import format_ms
from holdfast.core.policy import RunPolicy
from holdfast.core.progress import LogLine, kept_log, read_progress
from holdfast.core.task import Attempt, Task


def show_task(task: Task) -> None:
    """Prints envelope, state, arguments, result, history, the last error and the log."""
    output.details(_facts(task))
    if task.history:
        columns = ["#delivery", "#attempt", "outcome", "started", "#took", "worker", "error"]
        output.table(columns, [_attempt(attempt) for attempt in task.history], "")
    failure = last_failure(task)
    if failure is not None and failure.traceback:
        output.block("last traceback", failure.traceback)
    lines = kept_log(task)
    if lines:
        output.block("log", "\n".join(map(_log_line, lines)))


def show_log(lines: Sequence[LogLine]) -> None:
    """Prints log lines, one a line."""
    for line in lines:
        output.line(_log_line(line))


def _log_line(line: LogLine) -> str:
    text = " ".join(line.text.splitlines())
    return f"{iso_time(line.at_ms)} {line.level} {text}"


def _facts(task: Task) -> list[tuple[str, object]]:
    policy = task.policy
    return [
        ("task_id", task.task_id),
        ("type", task.type),
        ("queue", task.queue),
        ("state", task.state),
        ("reason", task.reason),
        ("cancel requested", "yes" if task.cancel_requested else None),
        ("attempts", f"{task.attempt} of {policy.max_attempts}, {task.deliveries} deliveries"),
        ("backoff", f"{format_ms(policy.base_ms)} doubling up to {format_ms(policy.cap_ms)}"),
        ("priority", task.priority),
        ("request_id", task.request_id),
        ("created", iso_time(task.created_at_ms)),
        ("due", iso_time(task.run_at_ms)),
        ("finished", iso_time(task.finished_at_ms)),
        ("worker", task.worker_id),
        ("claimed", iso_time(task.claimed_at_ms)),
        ("lease until", iso_time(task.lease_expires_at_ms)),
        ("headers", json.dumps(task.headers) if task.headers else None),
        ("arguments", _json(task.payload)),
        ("time limits", _limits(policy)),
        ("progress", progress_text(read_progress(task.progress))),
        ("result", _json(task.result)),
    ]


def _limits(policy: RunPolicy) -> str:
    limits = (
        ("asked to end after", policy.timeout_ms),
        ("killed after", policy.hard_timeout_ms),
        ("to be started within", policy.expires_ms),
    )
    return ", ".join(f"{what} {format_ms(limit_ms)}" for what, limit_ms in limits if limit_ms is not None)


def _attempt(attempt: Attempt) -> list[object]:
    error = attempt.error
    return [
        attempt.delivery,
        attempt.attempt,
        attempt.outcome,
        iso_time(attempt.started_at_ms),
        about_ms(attempt.ended_at_ms - attempt.started_at_ms),
        attempt.worker_id,
        f"{error.type}: {first_line(error.message)}" if error else "",
    ]


def _json(data: bytes | None) -> str | None:
    return None if data is None else json.dumps(json_value(data), ensure_ascii=False)
