"""From what a client says to a change: the rules are those of core/lifecycle.py."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from msgspec import UNSET, Raw, UnsetType

from holdfast.api import permits
from holdfast.api.guard import Denied
from holdfast.api.routing import Call
from holdfast.core import lifecycle, payload
from holdfast.core.durations import duration_ms
from holdfast.core.lifecycle import UNKNOWN, Change, Verdict
from holdfast.core.progress import read_progress
from holdfast.core.task import Failure, Task
from holdfast.core.tokens import fencing_token
from holdfast.errors import BadOption
from holdfast.wire import problems, shapes
from holdfast.wire.shapes import AnyChange, FailChange


async def settle(call: Call, changes: Sequence[AnyChange]) -> list[Verdict]:
    """Makes the changes, one verdict each."""
    made = await to_changes(call, changes)
    own = await permits.own_changes(call, made)
    verdicts = await call.gateway.store.apply(own.items) if own.items else []
    call.gateway.metrics.ended(own.items, verdicts)
    return own.with_others(verdicts, UNKNOWN)


async def settle_one(call: Call, change: AnyChange) -> Verdict:
    """Makes the change, or answers with the problem that keeps it from being made."""
    (verdict,) = await settle(call, [change])
    refuse(change.task_id, verdict)
    return verdict


def refuse(task_id: str, verdict: Verdict) -> None:
    """Answers with a problem if the change was not made."""
    if verdict.applied:
        return
    if verdict.reason == UNKNOWN.reason:
        raise Denied(problems.UNKNOWN_TASK.problem(f"no task {task_id} in this store"))
    state = verdict.state or "gone"
    kind = problems.STALE_CLAIM if verdict.reason == "stale_claim" else problems.REFUSED
    raise Denied(kind.problem(f"task {task_id} is {state}", reason=verdict.reason, state=verdict.state))


async def to_changes(call: Call, changes: Sequence[AnyChange]) -> list[Change]:
    """The changes that are meant; for failures, the tasks are looked at first, since their policies decide."""
    failed = [change.task_id for change in changes if isinstance(change, FailChange)]
    found = await call.gateway.store.get(failed) if failed else []
    call.gateway.task_queues.learn(found)
    tasks = {task.task_id: task for task in found if task is not None}
    max_bytes = call.gateway.settings.max_payload_bytes
    return [_to_change(change, tasks, max_bytes) for change in changes]


def _to_change(change: AnyChange, tasks: Mapping[str, Task], max_bytes: int) -> Change:  # noqa: PLR0911  (one a verb)
    match change:
        case shapes.AckChange():
            return lifecycle.ack(change.task_id, change.token, json_of(change.result, "result", max_bytes))
        case shapes.FailChange():
            return _failed(change, tasks.get(change.task_id))
        case shapes.SnoozeChange():
            return lifecycle.snooze(change.task_id, change.token, duration_ms(change.delay, "delay"))
        case shapes.ReleaseChange():
            return lifecycle.release(change.task_id, change.token)
        case shapes.StopChange():
            return lifecycle.stop(change.task_id, change.token, change.reason or None)
        case shapes.CancelChange():
            return lifecycle.cancel(change.task_id, change.reason)
        case shapes.PrioritizeChange():
            return lifecycle.prioritize(change.task_id, change.priority)
        case shapes.ReplayChange():
            return lifecycle.replay(change.task_id)
        case shapes.DiscardChange():
            return lifecycle.discard(change.task_id, change.reason)


def json_of(value: Raw | UnsetType, what: str, max_bytes: int) -> bytes | None:
    """The bytes of a JSON value within the limits; None for one that was not given."""
    if value is UNSET:
        return None
    data = bytes(value)
    payload.check(data, what, max_bytes)
    return data


def progress_of(value: Raw | UnsetType, max_bytes: int) -> bytes | None:
    """The same for word of how far a run is, which is an object."""
    data = json_of(value, "progress", max_bytes)
    if data is not None and data[:1] != b"{":
        raise BadOption('progress: write an object, as in {"done": 3, "total": 10}')
    return data


def _failed(change: FailChange, task: Task | None) -> Change:
    retry_in_ms = None if change.retry_in is UNSET else duration_ms(change.retry_in, "retry_in")
    if task is None:  # refused by the store in its own words
        return lifecycle.release(change.task_id, change.token)
    error, policy = change.error, task.policy
    # What the run has told so far ends with it: its log is kept with the error.
    failure = Failure(error.type, error.message, error.traceback, read_progress(task.progress).log)
    return lifecycle.fail(
        change.task_id,
        change.token,
        failure,
        attempt=_attempt(change, task),
        policy=policy,
        retryable=change.retryable and policy.worth_retrying([error.type]),
        random_unit=random.random(),  # noqa: S311  (spreads retries, hides nothing)
        retry_in_ms=retry_in_ms,
    )


def _attempt(change: FailChange, task: Task) -> int:
    """The attempt that this claim is: of a repeat that comes late, not the one that runs now."""
    try:
        delivery = fencing_token(change.token)
    except (ValueError, IndexError):
        return task.attempt  # no token of ours: refused by the store
    ended = (line.attempt for line in task.history if line.delivery == delivery)
    return next(ended, task.attempt)
