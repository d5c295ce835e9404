"""Checks of what a store trusts our own code with, and must not trust a client with."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Final

import msgspec

from holdfast.core import payload
from holdfast.core.durations import LONGEST_MS
from holdfast.core.ids import check_task_id, is_of_occurrence
from holdfast.core.lifecycle import Change, Event
from holdfast.core.names import check_queue, check_request_id, check_type
from holdfast.core.priority import check_priority
from holdfast.core.retry import DEFAULT_POLICY, MAX_ATTEMPTS, RunPolicy
from holdfast.core.schedule.occurrences import OCCURRENCE_PREFIX
from holdfast.core.task import MAX_HEADER_BYTES, MAX_HEADERS, Failure, Hold, NewTask
from holdfast.errors import BadName, BadOption, PayloadTooLarge, UnknownTask
from holdfast.stores.contract import MAX_BATCH, MAX_RESERVE_BYTES, Query, Reserve, WorkerRecord
from holdfast.stores.remote.limits import (
    LARGEST_COUNT,
    LARGEST_EXACT,
    LARGEST_MEMORY_BYTES,
    LONGEST_ID,
    LONGEST_LEASE_MS,
    LONGEST_TEXT,
    MAX_ERROR_TYPES,
    MAX_QUEUES,
    MAX_TYPES,
)

#: Names of the task types that one worker knows, all together.
_LONGEST_TYPES: Final = 64 * 1024
#: Log lines of one run, all together.
_LONGEST_LOG: Final = 64 * 1024
#: Of one run; a worker keeps the last hundred.
_MAX_LOG_LINES: Final = 1_000
#: What stores do by themselves, each in a call of its own; as a change it would be answered, and not be done.
_OF_STORES: Final = frozenset({Event.RESERVE, Event.PROMOTE, Event.UNBLOCK})
#: The last millisecond of the year 9999.
LAST_MS: Final = 253_402_300_799_999


def check_size(things: Sized, what: str, most: int = MAX_BATCH) -> None:
    """Refuses more of something than one request may bring."""
    if len(things) > most:
        raise BadOption(f"{what}: {len(things):,} are refused, {most:,} are the most in one request")


def check_number(value: int, what: str, high: int = LONGEST_MS, low: int = 0) -> int:
    """The number, or a `BadOption` that names the range."""
    if not low <= value <= high:
        raise BadOption(f"{what}: {value} is refused, it must be from {low:,} to {high:,}")
    return value


def check_id(text: str, what: str) -> str:
    """The id of a claim, a worker or the like, or a `BadOption`."""
    if not 1 <= len(text) <= LONGEST_ID or not text.isprintable():
        raise BadOption(f"{what}: {text!r:.80} is refused: use 1 to {LONGEST_ID} printable characters")
    return text


def check_query(query: Query) -> None:
    """Refuses a search for what cannot be there."""
    check_number(query.limit, "limit", MAX_BATCH, 1)
    for text in (query.queue, query.type, query.worker_id, query.error_type):
        if text:
            check_id(text, "text to look for")


def check_task(task: NewTask, max_payload: int) -> None:
    """Refuses an envelope that our own producer would not have made."""
    check_task_id(task.task_id)
    check_type(task.type)
    check_queue(task.queue)
    check_priority(task.priority)
    if task.request_id is not None:
        check_request_id(task.request_id)
    payload.check(task.payload, f"arguments of {task.type}", max_payload)
    check_headers(task.headers)
    check_number(task.delay_ms, "delay_ms")
    if task.run_at_ms is not None:
        check_number(task.run_at_ms, "run_at_ms", LAST_MS)
    if task.policy is not DEFAULT_POLICY:
        check_policy(task.policy)


def check_not_of_schedule(task: NewTask) -> NewTask:
    """The task itself; refuses the ids that only schedules give to their tasks."""
    if is_of_occurrence(task.task_id):
        raise BadName(f"task_id {task.task_id} is refused: it is one that only a schedule gives; leave it out")
    if task.request_id is not None and task.request_id.startswith(OCCURRENCE_PREFIX):
        raise BadName(
            f"request_id {task.request_id!r:.80} is refused: {OCCURRENCE_PREFIX} is for schedules; use another"
        )
    return task


def check_headers(headers: dict[str, str]) -> None:
    """Refuses headers over their limits; those of a trace and of a signature are not the caller's, and have as much."""
    if len(headers) > 2 * MAX_HEADERS:
        raise BadOption(f"headers: the limit is {MAX_HEADERS} of them; put data into the arguments")
    if (
        headers
        and sum(len(key.encode()) + len(value.encode()) for key, value in headers.items()) > 2 * MAX_HEADER_BYTES
    ):
        raise BadOption(f"headers: the limit is {MAX_HEADER_BYTES:,} bytes; put data into the arguments")


def check_policy(policy: RunPolicy) -> None:
    """Refuses a policy that `Retry` and the time limits of an app could not have made."""
    check_number(policy.max_attempts, "max_attempts", MAX_ATTEMPTS, 1)
    check_number(policy.base_ms, "base_ms")
    check_number(policy.cap_ms, "cap_ms")
    check_number(policy.result_ttl_ms, "result_ttl_ms")
    check_number(policy.dead_letter_ttl_ms, "dead_letter_ttl_ms")
    if not 0 <= policy.jitter <= 1:
        raise BadOption(f"jitter: {policy.jitter} is refused, it must be between 0 and 1")
    for what in ("timeout_ms", "hard_timeout_ms", "expires_ms"):
        limit_ms = getattr(policy, what)
        if limit_ms is not None:
            check_number(limit_ms, what)
    check_error_types(policy)
    for name in (*policy.give_up_on, *policy.retry_on):
        check_id(name, "class of error")


def check_item(item: NewTask | Change | Hold) -> None:
    """Refuses one of many with lists in it that are too long, before all of them are in memory."""
    if isinstance(item, NewTask):
        check_headers(item.headers)
        check_error_types(item.policy)
    elif isinstance(item, Change) and item.error is not None:
        check_size(item.error.log, "log lines", _MAX_LOG_LINES)


def check_error_types(policy: RunPolicy) -> None:
    """Refuses a policy that names too many classes of errors."""
    check_size(policy.give_up_on, "give_up_on", MAX_ERROR_TYPES)
    check_size(policy.retry_on, "retry_on", MAX_ERROR_TYPES)


def check_reserve(request: Reserve) -> None:
    """Refuses a request for tasks that no worker would make."""
    check_id(request.claim_id, "claim_id")
    check_id(request.worker_id, "worker_id")
    check_size(request.shares, "queues", MAX_QUEUES)
    check_size(request.types or (), "types", MAX_TYPES)
    check_number(request.max_tasks, "max_tasks", MAX_BATCH)
    check_number(request.lease_ms, "lease_ms", LONGEST_LEASE_MS)
    check_number(request.max_bytes, "max_bytes", MAX_RESERVE_BYTES)
    check_number(request.map_version, "map_version", LARGEST_EXACT)
    for share in request.shares:
        check_queue(share.queue)
        check_number(share.limit, "limit", MAX_BATCH)


def check_worker(worker: WorkerRecord) -> None:
    """Refuses what no worker says of itself."""
    check_id(worker.worker_id, "worker_id")
    if not worker.queues:
        raise BadOption("queues: a worker serves one at least")
    check_size(worker.queues, "queues")
    check_size(worker.types, "types", MAX_TYPES)
    for text in (worker.host, worker.version, *worker.queues, *worker.types):
        check_id(text, "host, version, queue or type")
    if sum(map(len, worker.types)) > _LONGEST_TYPES:
        raise BadOption(f"types: their names may have {_LONGEST_TYPES:,} characters together")
    for number in (worker.pid, worker.processes, worker.concurrency, worker.running, worker.ended_last_minute):
        check_number(number, "number", LARGEST_COUNT)
    check_number(worker.memory_bytes, "memory_bytes", LARGEST_MEMORY_BYTES)


def check_changes(changes: Sequence[Change], max_payload: int) -> None:
    """Refuses changes that no worker and no operator would make."""
    check_size(changes, "changes")
    for change in changes:
        if change.event in _OF_STORES:
            raise BadOption(f"event: {change.event} is refused, it is no change that a caller can make")
        check_number(change.delay_ms, "delay_ms")
        check_text(change.outcome, "outcome")
        check_text(change.reason or "", "reason")
        check_priority(change.priority)
        if change.epoch is not None:
            check_number(change.epoch, "epoch", LARGEST_EXACT, -1)
        if change.result is not None:
            payload.check(change.result, "result", max_payload)
        if change.error is not None:
            check_failure(change.error)


def check_failure(failure: Failure) -> None:
    """Refuses an error as text that is longer than a worker makes them."""
    check_id(failure.type, "class of error")
    check_text(failure.message, "message")
    check_text(failure.traceback, "traceback")
    check_size(failure.log, "log lines", _MAX_LOG_LINES)
    if sum(len(line.text) for line in failure.log) > _LONGEST_LOG:
        raise PayloadTooLarge(f"log lines: the limit is {_LONGEST_LOG:,} characters together")


def check_holds(holds: Sequence[Hold], max_payload: int) -> None:
    """Refuses claims that cannot be, and progress over the limit."""
    check_size(holds, "holds")
    for hold in holds:
        if hold.progress is not None:
            payload.check(hold.progress, "progress", max_payload)


def is_task_id(text: str) -> bool:
    """Whether this can be the id of a task."""
    try:
        check_task_id(text)
    except UnknownTask:
        return False
    return True


def check_numbers(record: msgspec.Struct) -> None:
    """Refuses a record with a number in it, however deep, that a store may not keep exactly."""
    for name, value in msgspec.structs.asdict(record).items():
        if isinstance(value, msgspec.Struct):
            check_numbers(value)
        elif isinstance(value, int):
            check_number(value, name, LARGEST_EXACT, -LARGEST_EXACT)


def check_text(text: str, what: str) -> None:
    """Refuses a text over the limit."""
    if len(text) > LONGEST_TEXT:
        raise PayloadTooLarge(f"{what}: {len(text):,} characters, the limit is {LONGEST_TEXT:,}")
