"""Why a task is in its current state, in one sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.admin.inspect import about_ms, every_page, first_line, last_failure, one_task, progress_text, several
from holdfast.clock import Clock, SystemClock
from holdfast.core import lifecycle
from holdfast.core.durations import format_ms
from holdfast.core.priority import rank
from holdfast.core.task import FINAL_STATES, State, Task, read_progress
from holdfast.errors import HoldfastError, ResultTimeout
from holdfast.stores import documents
from holdfast.stores.capabilities import in_part
from holdfast.stores.contract import LIST_OF_WORKERS, Query, QueueCounts, Store, WorkerRecord

#: Up to this many ready tasks in a queue it is counted how many of them stand in front.
_LOOK_AHEAD = 10_000
#: How long a caller whose time is over waits at most for the reason.
_EXPLAIN_SECONDS = 2.0
#: States in which a task waits for its turn, so that workers and other tasks matter.
_WAITING = frozenset({State.SCHEDULED, State.RETRY_PENDING, State.READY})
#: Tasks may be large: at most this many are in memory at once.
_PAGE = 100


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer: a word for programs, a sentence for people."""

    task_id: str
    state: State
    #: One of: waits_for_time, waits_for_maintenance, waits_for_tasks, waits_for_retry, queue_paused,
    #: no_worker_for_queue, no_worker_for_type, behind_others, next, running, lease_expired, cancelling; of a task that
    #: has ended: timed_out, worker_lost, expired, or else the final state's name.
    cause: str
    text: str
    #: Partitions that did not answer, of those that would have had something to say.
    left_out: tuple[int, ...] = ()


class TaskSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be known besides the task."""

    now_ms: int
    #: Those that live and take on tasks.
    workers: list[WorkerRecord]
    queue: QueueCounts
    #: Ready tasks of the same queue with a better place, for which there is a worker; None: too many to count.
    ahead: int | None = None
    #: If all slots are busy: the task of the queue that has been running for longest.
    longest_run: Task | None = None
    #: Partitions that did not answer, of those that have the list of workers or tasks of the queue.
    left_out: frozenset[int] = frozenset()

    @property
    def knows_workers(self) -> bool:
        """Whether `workers` is the list of workers: its partition may be away."""
        return LIST_OF_WORKERS not in self.left_out

    @property
    def ready(self) -> int:
        """All ready tasks of the queue."""
        return self.queue.states.get(State.READY, 0)

    @property
    def serving(self) -> list[WorkerRecord]:
        """The workers of the queue."""
        return [worker for worker in self.workers if self.queue.queue in worker.queues]


async def why(store: Store, task_id: str, clock: Clock | None = None) -> Explanation:
    """Explains the task's state; `UnknownTask` if there is no such task.

    Of the partitions, the task's own must answer; others that do not are left out, and named.
    """
    task = await one_task(store, task_id)
    snapshot = await _snapshot(store, task, clock)
    if task.state is State.READY and snapshot.ready <= _LOOK_AHEAD and snapshot.knows_workers:
        seen = in_part(store).store
        snapshot = msgspec.structs.replace(snapshot, ahead=await _ahead(seen, task, snapshot))
        if _is_full(task, snapshot):
            snapshot = msgspec.structs.replace(snapshot, longest_run=await _longest_run(seen, task.queue))
    cause, text = _EXPLAIN[task.state](task, snapshot)
    left_out = tuple(sorted(snapshot.left_out)) if task.state in _WAITING else ()
    return Explanation(
        task_id=task_id, state=task.state, cause=cause, text=f"{text}{_without(left_out)}", left_out=left_out
    )


async def hindrance(store: Store, task: Task) -> str:
    """What keeps every worker from taking a task that waits, in words; empty if nothing does. No task is counted."""
    found = _hindrance(task, await _snapshot(store, task))
    return "" if found is None else found[1]


async def timed_out(store: Store, task_id: str, limit_ms: int) -> ResultTimeout:
    """The error for a caller that has waited this long: the state of the task, and why it is in that state."""
    what = f"task {task_id} did not finish within {format_ms(limit_ms)}"
    try:
        async with asyncio.timeout(_EXPLAIN_SECONDS):
            found = await why(store, task_id)
    except (TimeoutError, HoldfastError):
        return ResultTimeout(f"{what}, and {store.url} does not say why; ask again later", task_id=task_id)
    return ResultTimeout(
        f"{what} (state: {found.state}; {in_sentence(found.text)}). {_still(found.state, store.url)}",
        task_id=task_id,
        state=found.state,
        why=found.text,
    )


def in_sentence(text: str) -> str:
    """The first sentence of an explanation, as a part of another one."""
    sentence = text.partition(". ")[0].removesuffix(".")
    return sentence[:1].lower() + sentence[1:]


def _still(state: State, url: str) -> str:
    """That the task is not lost, for a caller that stops waiting."""
    if state in FINAL_STATES:
        return "It has ended just now: ask again."
    return f"It is still {'running' if state is State.CLAIMED else 'queued'} in {url}."


async def _snapshot(store: Store, task: Task, clock: Clock | None = None) -> TaskSnapshot:
    view = in_part(store)
    workers = [worker for worker in await view.store.workers() if worker.alive and worker.status == "running"]
    counts = await _counts(view.store, task.queue)
    return TaskSnapshot(
        now_ms=(clock or SystemClock()).now_ms(),
        workers=workers,
        queue=counts,
        left_out=await _concerned(store, task.queue, view.left_out) if view.left_out else frozenset(),
    )


async def _concerned(store: Store, queue: str, left_out: Iterable[int]) -> frozenset[int]:
    """Those of the partitions that have the list of workers, or tasks of the queue."""
    known = await documents.partition_map(store)
    return frozenset(left_out) & {LIST_OF_WORKERS, *known.reach(queue)}


def _without(left_out: Sequence[int]) -> str:
    """Names what is not in the explanation."""
    if not left_out:
        return ""
    if len(left_out) == 1:
        return f" Partition {left_out[0]} does not answer and is left out."
    return f" Partitions {', '.join(map(str, left_out))} do not answer and are left out."


async def _counts(store: Store, queue: str) -> QueueCounts:
    empty = QueueCounts(queue=queue)
    return next((counts for counts in await store.counts() if counts.queue == queue), empty)


async def _ahead(store: Store, task: Task, snapshot: TaskSnapshot) -> int:
    known = {name for worker in snapshot.serving for name in worker.types}

    def place(other: Task) -> tuple[int, str]:
        return rank(other.run_at_ms, other.priority, snapshot.queue.step_ms), other.task_id

    query = Query(states=frozenset({State.READY}), queue=task.queue)
    ahead = 0
    async for page in every_page(store, query, _LOOK_AHEAD, _PAGE):
        ahead += sum(other.type in known and place(other) < place(task) for other in page)
    return ahead


async def _longest_run(store: Store, queue: str) -> Task | None:
    page = await store.find(Query(states=frozenset({State.CLAIMED}), queue=queue, limit=_PAGE))
    return min(page.tasks, key=lambda task: task.claimed_at_ms or 0, default=None)


# -- waiting -------------------------------------------------------------------------------------------------


def _blocked(task: Task, snapshot: TaskSnapshot) -> tuple[str, str]:
    return "waits_for_tasks", f"It waits for other tasks to finish.{_deadline(task, snapshot)}"


def _scheduled(task: Task, snapshot: TaskSnapshot) -> tuple[str, str]:
    left_ms = task.run_at_ms - snapshot.now_ms
    if left_ms <= 0:
        return _late(-left_ms, snapshot)
    text = f"{_reason_to_wait(task)} for its time, in {about_ms(left_ms)}."
    return "waits_for_time", f"{text}{_prospects(task, snapshot)}{_deadline(task, snapshot)}"


def _reason_to_wait(task: Task) -> str:
    outcome = task.history[-1].outcome if task.history else ""
    if outcome == lifecycle.UNFIT:
        return f"No worker has had the signature that its arguments need ({_error(task)}); it waits"
    return "It asked to run again later, and waits" if outcome == "snoozed" else "It waits"


def _retry_pending(task: Task, snapshot: TaskSnapshot) -> tuple[str, str]:
    left_ms = task.run_at_ms - snapshot.now_ms
    if left_ms <= 0:
        return _late(-left_ms, snapshot)
    next_attempt = f"attempt {task.attempt + 1} of {task.policy.max_attempts}"
    text = f"It waits for {next_attempt}, in {about_ms(left_ms)}, after {_error(task)}.{_prospects(task, snapshot)}"
    return "waits_for_retry", text


def _ready(task: Task, snapshot: TaskSnapshot) -> tuple[str, str]:
    hindrance = _hindrance(task, snapshot)
    cause, text = hindrance or _standing_in_line(task, snapshot)
    return cause, f"{text}{_deadline(task, snapshot)}"


def _standing_in_line(task: Task, snapshot: TaskSnapshot) -> tuple[str, str]:
    waited = f"It has been ready for {about_ms(snapshot.now_ms - task.run_at_ms)}"
    if not snapshot.knows_workers:
        cause = "next" if snapshot.ready == 1 else "behind_others"
        line = several(snapshot.ready, "ready task")
        return cause, f"{waited}, one of {line} in queue {task.queue}; whether a worker serves it is not known."
    where = f"in queue {task.queue}, served by {_capacity(task, snapshot)}.{_longest(snapshot)}"
    if snapshot.ahead is None:
        return "behind_others", f"{waited}, one of {several(snapshot.ready, 'ready task')} {where}"
    if snapshot.ahead:
        others = f"{snapshot.ahead:,} others" if snapshot.ahead > 1 else "1 other task"
        return "behind_others", f"{waited}, behind {others} {where}"
    return "next", f"{waited} and is next {where}"


def _slots(task: Task, snapshot: TaskSnapshot) -> tuple[int, int]:
    """How many slots its workers have, and how many of them are busy.

    A worker tells the number of its runs with its heartbeat, which is up to 10 s old: the store counts claims at once.
    """
    serving = _serving(task, snapshot)
    slots = sum(worker.concurrency * worker.processes for worker in serving)
    told = sum(worker.running for worker in serving)
    return slots, min(slots, max(told, snapshot.queue.states.get(State.CLAIMED, 0)))


def _is_full(task: Task, snapshot: TaskSnapshot) -> bool:
    slots, busy = _slots(task, snapshot)
    return busy == slots


def _capacity(task: Task, snapshot: TaskSnapshot) -> str:
    slots, busy = _slots(task, snapshot)
    return f"{several(len(_serving(task, snapshot)), 'worker')} with {busy:,} of {several(slots, 'slot')} busy"


def _longest(snapshot: TaskSnapshot) -> str:
    run = snapshot.longest_run
    if run is None:
        return ""
    since = about_ms(snapshot.now_ms - (run.claimed_at_ms or snapshot.now_ms))
    return f" The longest run is {run.type}[{run.task_id}], for {since}; if it waits for this task, add slots."


def _hindrance(task: Task, snapshot: TaskSnapshot) -> tuple[str, str] | None:
    """What keeps any worker from taking it, None if nothing does."""
    if snapshot.queue.paused:
        return "queue_paused", f"Queue {task.queue} is paused; `holdfast queues resume {task.queue}` lets it go on."
    if not snapshot.knows_workers:
        return None
    if not snapshot.workers:
        return "no_worker_for_queue", f"No worker is running for queue {task.queue}."
    if not snapshot.serving:
        served = ", ".join(sorted({queue for worker in snapshot.workers for queue in worker.queues}))
        return "no_worker_for_queue", f"No running worker serves queue {task.queue}; they serve {served or 'none'}."
    if not _serving(task, snapshot):
        number = len(snapshot.serving)
        if number == 1:
            text = f"The only worker of queue {task.queue} does not know the type {task.type}."
        else:
            text = f"None of the {number:,} workers of queue {task.queue} knows the type {task.type}."
        return "no_worker_for_type", text
    return None


def _prospects(task: Task, snapshot: TaskSnapshot) -> str:
    hindrance = _hindrance(task, snapshot)
    return f" Then it will have to wait: {hindrance[1][0].lower()}{hindrance[1][1:]}" if hindrance else ""


def _late(late_ms: int, snapshot: TaskSnapshot) -> tuple[str, str]:
    without_worker = f"no worker is running for queue {snapshot.queue.queue}"
    if not snapshot.knows_workers:
        without_worker = "whether a worker is running is not known"
    whose = "a worker will move it to its queue in a moment" if snapshot.workers else without_worker
    return "waits_for_maintenance", f"It has been due for {about_ms(late_ms)}; {whose}."


def _deadline(task: Task, snapshot: TaskSnapshot) -> str:
    """By when a task that never ran has to be started, if it has to."""
    if task.policy.expires_ms is None or task.deliveries:
        return ""
    left_ms = task.created_at_ms + task.policy.expires_ms - snapshot.now_ms
    if left_ms > 0:
        return f" If it is not started within {about_ms(left_ms)}, it expires."
    return (
        f" It should have been started {about_ms(-left_ms)} ago, and expires as soon as a worker does the maintenance."
    )


def _serving(task: Task, snapshot: TaskSnapshot) -> list[WorkerRecord]:
    return [worker for worker in snapshot.serving if task.type in worker.types]


# -- running -------------------------------------------------------------------------------------------------


def _claimed(task: Task, snapshot: TaskSnapshot) -> tuple[str, str]:
    since = about_ms(snapshot.now_ms - (task.claimed_at_ms or snapshot.now_ms))
    told = progress_text(read_progress(task.progress))
    holder = f"Worker {task.worker_id} has been running attempt {_of(task)} for {since}{f' ({told})' if told else ''}"
    left_ms = (task.lease_expires_at_ms or 0) - snapshot.now_ms
    if left_ms <= 0:
        expired = f"its lease ran out {about_ms(-left_ms)} ago"
        return "lease_expired", f"{holder}, but {expired}: it will be given to another worker."
    if task.cancel_requested:
        return "cancelling", f"{holder}; its cancellation is asked for ({task.reason}) and the worker is being told."
    return "running", f"{holder}; its lease has {about_ms(left_ms)} left{_time_left(task, snapshot)}."


def _time_left(task: Task, snapshot: TaskSnapshot) -> str:
    """When its time limit ends, or its process is killed."""
    ran_ms = snapshot.now_ms - (task.claimed_at_ms or snapshot.now_ms)
    soft_ms, hard_ms = task.policy.timeout_ms, task.policy.hard_timeout_ms
    if soft_ms is not None and soft_ms > ran_ms:
        return f", its time limit ends in {about_ms(soft_ms - ran_ms)}"
    passed = "" if soft_ms is None else f", its time limit passed {about_ms(ran_ms - soft_ms)} ago"
    return passed if hard_ms is None else f"{passed}, its process is killed in {about_ms(hard_ms - ran_ms)}"


# -- finished ------------------------------------------------------------------------------------------------


def _succeeded(task: Task, snapshot: TaskSnapshot) -> tuple[str, str]:
    last = task.history[-1] if task.history else None
    took = f", in {about_ms(last.ended_at_ms - last.started_at_ms)}" if last else ""
    return "succeeded", f"It succeeded {_ago(task, snapshot)} on attempt {_of(task)}{took}."


def _dead_lettered(task: Task, snapshot: TaskSnapshot) -> tuple[str, str]:
    text = f"It was dead-lettered {_ago(task, snapshot)}: {_ended_because(task)}; `holdfast dead replay` puts it back."
    return _end(task), text


def _failed(task: Task, snapshot: TaskSnapshot) -> tuple[str, str]:
    return _end(task), f"It failed for good {_ago(task, snapshot)}: {_ended_because(task)}."


def _cancelled(task: Task, snapshot: TaskSnapshot) -> tuple[str, str]:
    if _end(task) == "expired" and task.policy.expires_ms is not None:
        within = f"within {format_ms(task.policy.expires_ms)} of its enqueue"
        return "expired", f"It expired {_ago(task, snapshot)}: it was not started {within}."
    return "cancelled", f"It was cancelled {_ago(task, snapshot)}: {task.reason or 'no reason given'}."


def _end(task: Task) -> str:
    """How it ended, where its state alone does not say it."""
    reason = (task.reason or "").partition(":")[0]
    told_apart = {State.CANCELLED: {"expired"}}.get(task.state, {"timed_out", "worker_lost"})
    return reason if reason in told_apart else task.state.value


def _ended_because(task: Task) -> str:
    if task.reason == "not_retryable":
        return f"attempt {_of(task)} ended with an error that is not retried, {_error(task)}"
    if task.reason == "worker_lost":
        return f"its worker was lost on attempt {_of(task)}, the last one: {_error(task)}"
    if task.reason == "timed_out":
        return f"attempt {_of(task)}, the last one, ended with {_error(task)}"
    return f"it used up {several(task.attempt, 'attempt')}, the last of which ended with {_error(task)}"


def _error(task: Task) -> str:
    failure = last_failure(task)
    if failure is None:
        return "an error that was not recorded"
    message = first_line(failure.message)
    return f"{failure.name}: {message}" if message else failure.name


def _of(task: Task) -> str:
    return f"{task.attempt} of {task.policy.max_attempts}"


def _ago(task: Task, snapshot: TaskSnapshot) -> str:
    return f"{about_ms(snapshot.now_ms - (task.finished_at_ms or snapshot.now_ms))} ago"


_EXPLAIN: dict[State, Callable[[Task, TaskSnapshot], tuple[str, str]]] = {
    State.BLOCKED: _blocked,
    State.SCHEDULED: _scheduled,
    State.RETRY_PENDING: _retry_pending,
    State.READY: _ready,
    State.CLAIMED: _claimed,
    State.SUCCEEDED: _succeeded,
    State.FAILED: _failed,
    State.DEAD_LETTERED: _dead_lettered,
    State.CANCELLED: _cancelled,
}
