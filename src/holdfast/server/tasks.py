"""Read and change single tasks."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from holdfast.admin.views import TaskView
from holdfast.admin.why import Explanation, why
from holdfast.core import lifecycle, payload
from holdfast.core.durations import duration_ms
from holdfast.core.ids import check_task_id, fencing_token
from holdfast.core.lifecycle import UNKNOWN, Change, Verdict
from holdfast.core.retry import RunPolicy
from holdfast.core.task import FINAL_STATES, Failure, LogLine, Task, kept_log, read_progress
from holdfast.errors import BadOption, UnknownTask
from holdfast.security.redaction import redacted_text
from holdfast.server import permits, requests
from holdfast.server.auth import Denied, Rule, Scope
from holdfast.server.operator_requests import TaskQuery, TasksQuery
from holdfast.server.polls import while_there
from holdfast.server.rendering import PAGE_BYTES, TASK_BYTES, each_task, find_page, shown, shown_task, without_secrets
from holdfast.server.requests import (
    AnyChange,
    CancelBody,
    CancelChange,
    FailChange,
    PrioritizeBody,
    PrioritizeChange,
)
from holdfast.server.responses import ChangeView, HistoryView, LogView, TaskPage, numbers
from holdfast.server.routing import Call, Routes
from holdfast.stores.capabilities import in_part
from holdfast.stores.contract import Query
from holdfast.stores.remote import problems

#: Log lines of a run that are kept with its error, as in our own workers.
_MAX_LOG_LINES: Final = 100
_MAX_LOG_CHARS: Final = 16 * 1024


# -- from bodies to changes ----------------------------------------------------------------------------------------


async def settle(call: Call, changes: Sequence[AnyChange]) -> list[Verdict]:
    """Makes the changes, one verdict each."""
    made = await to_changes(call, changes)
    own = await permits.own_changes(call, made)
    verdicts = await call.server.store.apply(own.items) if own.items else []
    call.server.metrics.ended(own.items, verdicts)
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
    """The changes of the lifecycle; for failures, the tasks are read first, since their policies decide."""
    failed = list(dict.fromkeys(change.task_id for change in changes if isinstance(change, FailChange)))
    standings: dict[str, _Standing] = {}
    if failed:
        await call.answer_share.wait(min(TASK_BYTES * len(failed), PAGE_BYTES))
        async for task in each_task(call.server.store, failed):
            if task is not None:
                call.server.task_queues.learn([task])
                standings[task.task_id] = _Standing.of(task)
        call.answer_share.give_back()
    max_bytes = call.server.settings.max_payload_bytes
    return [_to_change(change, standings, max_bytes) for change in changes]


class _Standing(NamedTuple):
    """What has to be known of a task whose attempt has failed."""

    policy: RunPolicy
    attempt: int
    #: The attempt that each claim was which has ended.
    attempts: Mapping[int, int]
    log: tuple[LogLine, ...]

    @classmethod
    def of(cls, task: Task) -> _Standing:
        """That of this task."""
        attempts = {run.delivery: run.attempt for run in task.history}
        return cls(task.policy, task.attempt, attempts, _bounded(read_progress(task.progress).log))

    def attempt_of(self, token: str) -> int:
        """The attempt that the claim with this token is: of a repeat that comes late, not the one that runs now."""
        try:
            return self.attempts.get(fencing_token(token), self.attempt)
        except (ValueError, IndexError):
            return self.attempt  # no token of ours: refused by the store


def _bounded(log: tuple[LogLine, ...]) -> tuple[LogLine, ...]:
    """The last lines, as many as are kept with an error."""
    kept: list[LogLine] = []
    room = _MAX_LOG_CHARS
    for line in reversed(log[-_MAX_LOG_LINES:]):
        room -= len(line.text)
        if room < 0:
            break
        kept.append(line)
    return tuple(reversed(kept))


def _to_change(change: AnyChange, standings: Mapping[str, _Standing], max_bytes: int) -> Change:  # noqa: PLR0911  (one a verb)
    match change:
        case requests.AckChange():
            return lifecycle.ack(change.task_id, change.token, json_of(change.result, "result", max_bytes))
        case requests.FailChange():
            return _failed(change, standings.get(change.task_id))
        case requests.SnoozeChange():
            return lifecycle.snooze(change.task_id, change.token, duration_ms(change.delay, "delay"))
        case requests.ReleaseChange():
            return lifecycle.release(change.task_id, change.token)
        case requests.StopChange():
            return lifecycle.stop(change.task_id, change.token, change.reason or None)
        case requests.CancelChange():
            return lifecycle.cancel(change.task_id, change.reason)
        case requests.PrioritizeChange():
            return lifecycle.prioritize(change.task_id, change.priority)
        case requests.ReplayChange():
            return lifecycle.replay(change.task_id)
        case requests.DiscardChange():
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


def _failed(change: FailChange, standing: _Standing | None) -> Change:
    retry_in_ms = None if change.retry_in is UNSET else duration_ms(change.retry_in, "retry_in")
    if standing is None:  # refused by the store in its own words
        return lifecycle.release(change.task_id, change.token)
    error, policy = change.error, standing.policy
    # What the run has told so far ends with it: its log is kept with the error.
    failure = Failure(error.type, error.message, error.traceback, standing.log)
    return lifecycle.fail(
        change.task_id,
        change.token,
        failure,
        attempt=standing.attempt_of(change.token),
        policy=policy,
        retryable=change.retryable and policy.worth_retrying([error.type]),
        random_unit=random.random(),  # noqa: S311  (spreads retries, hides nothing)
        retry_in_ms=retry_in_ms,
    )


# -- routes --------------------------------------------------------------------------------------------------------


routes = Routes("tasks")

_SEE = Rule((Scope.READ, Scope.ENQUEUE, Scope.WORK), "task")
_CANCEL = Rule((Scope.MANAGE, Scope.ENQUEUE), "task")


@routes.add("GET", "/v1/tasks/{task_id}", _SEE, takes=TaskQuery, gives=TaskView)
async def show_task(call: Call, query: TaskQuery) -> TaskView:
    """A task; with `wait`, when it has ended or after that time, whichever comes first."""
    wait_ms = min(duration_ms(query.wait, "wait"), call.server.settings.longest_wait_ms)
    if wait_ms and (await _task(call)).state not in FINAL_STATES:
        call.answer_share.give_back()
        await while_there(call, call.server.results.ended(task_id_of(call), wait_ms / 1000))
    task = await _task(call)
    (view,) = await shown([task], lambda task: shown_task(task, call.caller, history=True))
    return view


@routes.add("GET", "/v1/tasks", Rule((Scope.READ,)), takes=TasksQuery, gives=TaskPage)
async def find_tasks(call: Call, query: TasksQuery) -> TaskPage:
    """Tasks that match, newest first, and a cursor to go on."""
    wanted = Query(
        states=frozenset(query.state) or None,
        queue=query.queue,
        type=query.type,
        worker_id=query.worker_id,
        error_type=query.error_type,
        limit=query.limit,
        cursor=query.cursor,
    )
    await call.answer_share.wait(PAGE_BYTES)
    view = in_part(call.server.store)
    page = await while_there(call, find_page(view.store.find, wanted))
    tasks = await shown(page.tasks, lambda task: shown_task(task, call.caller, history=False))
    return TaskPage(tasks=tasks, cursor=page.cursor, left_out=numbers(view.left_out))


@routes.add("GET", "/v1/tasks/{task_id}/why", _SEE, gives=Explanation)
async def explain_task(call: Call) -> Explanation:
    """Why a task is in its current state, in a word and in a sentence."""
    task = await _task(call)
    await call.answer_share.wait(PAGE_BYTES)
    found = await why(permits.VisibleStore(call), task.task_id, call.server.clock)
    return found if call.caller.sees_secrets(task.queue) else replace(found, text=redacted_text(found.text))


@routes.add("GET", "/v1/tasks/{task_id}/history", _SEE, gives=HistoryView)
async def show_history(call: Call) -> HistoryView:
    """The runs of a task that have ended, and its log lines."""
    (task,) = await shown([await _task(call)], lambda task: without_secrets(task, call.caller))
    log = [LogView(at_ms=line.at_ms, level=line.level, text=line.text) for line in kept_log(task)]
    return HistoryView(task_id=task.task_id, attempts=task.history, log=log)


@routes.add("POST", "/v1/tasks/{task_id}/cancel", _CANCEL, takes=CancelBody, gives=ChangeView)
async def cancel_task(call: Call, body: CancelBody) -> ChangeView:
    """Cancels a waiting task, asks a running one to stop; its state says which."""
    task_id = task_id_of(call)
    if not call.caller.may(Scope.MANAGE):
        await _task(call)
    verdict = await settle_one(call, CancelChange(task_id=task_id, reason=body.reason))
    return ChangeView.of(task_id, verdict)


@routes.add("POST", "/v1/tasks/{task_id}/prioritize", Rule((Scope.MANAGE,)), takes=PrioritizeBody, gives=ChangeView)
async def prioritize_task(call: Call, body: PrioritizeBody) -> ChangeView:
    """Gives a waiting task another priority."""
    task_id = task_id_of(call)
    verdict = await settle_one(call, PrioritizeChange(task_id=task_id, priority=body.priority))
    return ChangeView.of(task_id, verdict)


def task_id_of(call: Call) -> str:
    """The task_id in the address; one that cannot be is that of no task."""
    return check_task_id(call.path("task_id"))


async def _task(call: Call) -> Task:
    """The task, if it is visible to the caller; not yet redacted."""
    task_id = task_id_of(call)
    await call.answer_share.wait(TASK_BYTES)
    (task,) = permits.visible(call, await call.server.store.get([task_id]))
    if task is None:
        raise UnknownTask(f"no task {task_id} in this store")
    return task
