"""What a task can learn of its own run, and say about it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeVar, overload

from holdfast.clock import SystemClock
from holdfast.core.durations import Duration
from holdfast.core.tokens import fencing_token
from holdfast.errors import ClaimLost, UsageError
from holdfast.worker.once import KEEP, Once
from holdfast.worker.report import report_of
from holdfast.worker.run import Ending, Run
from holdfast.worker.transaction import Transaction, set_result

P = ParamSpec("P")
R = TypeVar("R")

#: The run of the task that this code belongs to.
current_run: ContextVar[Run] = ContextVar("holdfast_run")

#: Where `current().log` writes.
TASK_LOGGER = "holdfast.task"


def current() -> RunningTask:
    """The task in which this is called; also in threads that run a `def` task."""
    run = current_run.get(None)
    if run is None:
        raise UsageError("current() works inside a running task only; call it from a function that a worker runs")
    if run.facade is None:
        run.facade = RunningTask(run)
    return run.facade


class RunningTask:
    """One run of a task, seen from the inside."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def task_id(self) -> str:
        """The id that `enqueue` gave."""
        return self._run.task.task_id

    @property
    def type(self) -> str:
        """The name of the task type."""
        return self._run.task.type

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self._run.task.queue

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self._run.task.attempt

    @property
    def max_attempts(self) -> int:
        """How many there may be."""
        return self._run.task.policy.max_attempts

    @property
    def fencing_token(self) -> int:
        """Grows with every claim of this task: hand it to systems that refuse older ones."""
        return fencing_token(self._run.task.token)

    @property
    def worker_id(self) -> str:
        """Who runs it, as in its history: the id of the worker, a colon, which child; empty where no worker does."""
        return "" if self._run.workplace is None else self._run.workplace.worker_id

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the envelope."""
        return self._run.task.headers

    @property
    def created_at(self) -> datetime:
        """When it was enqueued."""
        return datetime.fromtimestamp(self._run.task.created_at_ms / 1000, UTC)

    @property
    def time_left(self) -> float | None:
        """Seconds until its time limit, negative after it; None if it has none."""
        limit = self._run.limit
        return None if limit is None else (limit.ends_at_ms - SystemClock().monotonic_ms()) / 1000

    @property
    def deadline(self) -> datetime | None:
        """When its time limit passes, by the clock of this machine; None if it has none."""
        limit = self._run.limit
        return None if limit is None else datetime.fromtimestamp(limit.deadline_ms / 1000, UTC)

    @property
    def state(self) -> Any:
        """What the app's lifespan has given: the same object for all tasks of this process; None without one."""
        return None if self._run.workplace is None else self._run.workplace.state

    @property
    def cancelled(self) -> bool:
        """Whether it is to stop: a cancellation, its time limit, a lost claim, or the worker's shutdown."""
        return self._run.ending is not None

    @property
    def claim_lost(self) -> bool:
        """Whether another worker may hold it now: no more side effects."""
        if self._run.transaction is not None and self._run.transaction.committed:
            return False  # nobody will: it has succeeded
        return self._run.ending is Ending.LOST or SystemClock().monotonic_ms() >= self._run.deadline_ms

    def raise_if_cancelled(self) -> None:
        """Ends the task here if it is to stop; for loops that catch what is raised in them from outside."""
        if self.claim_lost:
            raise ClaimLost(f"task {self.task_id}: the claim of this attempt has passed")
        self._run.raise_if_ending()

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Records how far it is; the latest call wins and is written within about a second."""
        report_of(self._run).tell(done, total, note)

    @overload
    def once(self, key: str, /, *, keep: Duration = KEEP) -> Once: ...

    @overload
    def once(
        self, key: str, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def once(self, key: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def once(self, key: str, /, *call: Any, **options: Any) -> Any:
        """The result of this step if it was done under this key before, by any task; else it is done, and kept.

        `once(key, function, ...)`, to be awaited if the function is async; `once(key, keep="30d")(function, ...)` keeps
        the result for another time than 7 days. A crash between the end of the step and the keeping repeats the step.
        """
        return Once(self._run, key)(*call, **options) if call else Once(self._run, key, **options)

    def transaction(self) -> Transaction:
        """A block whose commit is also the success of this task, on PostgreSQL: `async with`, or `with` in threads.

        It gives a connection of psycopg to the store's database. At its end the writes are committed together with the
        ack of the claim; if the claim is lost, nothing is, and `ClaimLost` is raised. What raises inside rolls back.
        """
        return Transaction(self._run)

    def set_result(self, value: Any) -> None:
        """The task's result, to be stored by the commit of the `transaction()` block in which this is called."""
        set_result(self._run, value)

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry the task's id, type, queue and attempt; the last ones are kept with the task."""
        return _TaskLog(
            logging.getLogger(TASK_LOGGER),
            {"task_id": self.task_id, "task_type": self.type, "queue": self.queue, "attempt": self.attempt},
        )


class _TaskLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Adds the task to what the caller passes."""
        return msg, {**kwargs, "extra": {**(self.extra or {}), **(kwargs.get("extra") or {})}}
