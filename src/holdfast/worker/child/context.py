"""What a task can learn of its own run, and report about it: `current()`, progress, log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeVar, overload

from holdfast.core.durations import Duration
from holdfast.core.ids import fencing_token
from holdfast.errors import ClaimLost, UsageError
from holdfast.observe.logs import LogFormat, message_of, traceback_of
from holdfast.observe.logs import set_up_logging as set_up_lines
from holdfast.observe.task_log import task_logger
from holdfast.observe.tracing import trace_id
from holdfast.runtime.interrupts import shielded
from holdfast.worker.child.once import KEEP, Once
from holdfast.worker.child.run import Run, report_of
from holdfast.worker.child.transaction import RunTransaction, set_result

P = ParamSpec("P")
R = TypeVar("R")

#: The run of the task that this code belongs to.
current_run: ContextVar[Run] = ContextVar("holdfast_run")


def current() -> RunningTask:
    """The task in which this is called; also in threads that run a `def` task."""
    run = current_run.get(None)
    if run is None:
        raise UsageError("current() works inside a running task only; call it from a function that a worker runs")
    return RunningTask(run)


class RunningTask:
    """One run of a task, seen from the inside."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunningTask) and other._run is self._run

    def __hash__(self) -> int:
        return hash(self._run)

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
        return "" if self._run.context is None else self._run.context.worker_id

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
        return None if limit is None else (limit.ends_at_ms - self._run.clock.monotonic_ms()) / 1000

    @property
    def deadline(self) -> datetime | None:
        """When its time limit passes, by the clock of this machine; None if it has none."""
        limit = self._run.limit
        return None if limit is None else datetime.fromtimestamp(limit.deadline_ms / 1000, UTC)

    @property
    def state(self) -> Any:
        """What the app's lifespan has given: the same object for all tasks of this process; None without one."""
        return None if self._run.context is None else self._run.context.state

    @property
    def cancelled(self) -> bool:
        """Whether it is to stop: a cancellation, its time limit, a lost claim, or the worker's shutdown."""
        return self._run.ending is not None

    @property
    def claim_lost(self) -> bool:
        """Whether another worker may hold it now: no more side effects."""
        if self._run.transaction is not None and self._run.transaction.committed:
            return False  # no other worker will: it has succeeded
        return self._run.claim_lost()

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

    def transaction(self) -> RunTransaction:
        """A block whose commit is also the success of this task, on PostgreSQL: `async with`, or `with` in threads.

        It gives a connection of psycopg to the store's database. At its end the writes are committed together with the
        ack of the claim; if the claim is lost, nothing is, and `ClaimLost` is raised. What raises inside rolls back.
        """
        return RunTransaction(self._run)

    def set_result(self, value: Any) -> None:
        """The task's result, to be stored by the commit of the `transaction()` block in which this is called."""
        set_result(self._run, value)

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry the task's id, type, queue and attempt; the last ones are kept with the task."""
        return _TaskLog(
            task_logger,
            {"task_id": self.task_id, "task_type": self.type, "queue": self.queue, "attempt": self.attempt},
        )


class _TaskLog(logging.LoggerAdapter[logging.Logger]):
    """Shielded: an exception from outside in the middle of a call would leave a lock of `logging` held."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Adds the task to what the caller passes."""
        return msg, {**kwargs, "extra": {**(self.extra or {}), **(kwargs.get("extra") or {})}}

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Logs one line; its place is that of the caller, not this one."""
        with shielded():
            super().log(level, msg, *args, **{**kwargs, "stacklevel": kwargs.get("stacklevel", 1) + 1})

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  (the name that `logging` gave it)
        """Whether a line of this level would be written."""
        with shielded():
            return super().isEnabledFor(level)


# -- log lines of tasks ----------------------------------------------------------------------------------------


def set_up_logging(level: str, log_format: LogFormat) -> None:
    """Sends all log records of this process to stderr, and keeps those of tasks with them."""
    root = set_up_lines(level, log_format, _add_task)
    root.addHandler(LogKeeper(root.level))


class LogKeeper(logging.Handler):
    """Keeps the log records that are made inside a task with its run."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Adds it to what the run has to say; without the handler's lock, which an interrupted thread could keep."""
        run = current_run.get(None)
        if run is not None and not hasattr(record, "outcome"):  # what the worker says of a run is in its history
            report_of(run).add(round(record.created * 1000), record.levelname.lower(), self._text(record))
        return True

    def _text(self, record: logging.LogRecord) -> str:
        origin = "" if record.name == task_logger.name else f"{record.name}: "
        text, traceback = f"{origin}{message_of(record)}", traceback_of(record)
        return f"{text}\n{traceback}" if traceback else text


def _add_task(record: logging.LogRecord) -> bool:
    """A record made inside a task says which, whatever logger made it, and in which trace that runs."""
    run = current_run.get(None)
    if run is None:
        return True
    task = run.task
    if not hasattr(record, "task_id"):
        record.task_id, record.task_type = task.task_id, task.type
        record.queue, record.attempt = task.queue, task.attempt
    if not hasattr(record, "trace_id") and (found := trace_id(task.headers)) is not None:
        record.trace_id = found
    return True
