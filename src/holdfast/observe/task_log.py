"""One log line for each thing that happens to a task in a worker: its start, its end and how, its loss with a child.

They go to the logger `holdfast.task`. A process that runs tens of thousands of tasks a second logs a sample of them:
which runs are logged is decided for a whole batch, before anything is formatted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic_ns
from typing import Any, Final, Literal, NamedTuple, Protocol

from holdfast.core.durations import format_ms
from holdfast.core.lifecycle import Change, Event
from holdfast.core.names import storable
from holdfast.core.retry import RunPolicy
from holdfast.core.task import Claimed, Failure, Task
from holdfast.observe.runs import LOST, OUTCOMES, CountedRun, outcome_of
from holdfast.observe.tracing import trace_id
from holdfast.security.redaction import redacted_text

_log = logging.getLogger("holdfast.worker")
#: Looked up here, once: `getLogger` takes the lock of all loggers, which an interrupted thread would keep for ever.
task_logger: Final = logging.getLogger("holdfast.task")

#: What is logged of tasks: everything, failed attempts only, or nothing.
LogTasks = Literal["all", "failures", "none"]

#: In each process, of this many runs a second are start and success logged.
MAX_RUNS_LOGGED_PER_S: Final = 50
#: In each process, this many failed attempts a second are logged.
MAX_FAILURES_LOGGED_PER_S: Final = 50
#: In each process, this many dead letters a second are logged: retries do not use up their lines.
MAX_DEAD_LETTERS_LOGGED_PER_S: Final = 50
#: How often the runs and failures are counted in a line that were not logged.
SUMMARY_S: Final = 10.0
#: A header with the attempts that a task counts itself, where its policy has more of them for lost processes.
ATTEMPTS_HEADER: Final = "holdfast-attempts"
_MAX_ATTEMPTS_DIGITS: Final = 6
#: How much of an error's message goes into its line.
MAX_ERROR_CHARS: Final = 500

_ACK: Final = Event.ACK
_SECOND_NS: Final = 1_000_000_000


class LoggedRun(CountedRun, Protocol):
    """What is to be known of a run."""

    #: Whether its start was logged, so that its end is too.
    logged: bool
    #: What it raised, where that is kept.
    error: BaseException | None


class Budget:
    """A number of lines for each second; the rest is counted, and the first one that is left out is said at once."""

    __slots__ = ("_left", "_level", "_per_second", "_said", "_until_ns", "_what", "skipped")

    def __init__(self, per_second: int, level: int, what: str) -> None:
        self._per_second = per_second
        self._level = level
        #: What it counts, in plural.
        self._what = what
        self._left = per_second
        self._until_ns = 0
        #: Since the last summary.
        self.skipped = 0
        #: Whether the log has a line about those that were left out, and none of them was long ago.
        self._said = False

    def take(self, wanted: int = 1) -> int:
        """How many of these may be logged."""
        now_ns = monotonic_ns()
        if now_ns >= self._until_ns:
            self._until_ns = now_ns + _SECOND_NS
            self._left = self._per_second
        granted = min(wanted, self._left)
        self._left -= granted
        if granted < wanted:
            self.skipped += wanted - granted
            if not self._said:
                self._say_first()
        return granted

    def _say_first(self) -> None:
        self._said = True
        text = "more than %d %s a second: a sample is logged from here on, the others are counted every %gs"
        task_logger.log(self._level, text, self._per_second, self._what, SUMMARY_S)

    def summarize(self) -> None:
        """Logs how many were left out since the last call, if any were."""
        self._said = bool(self.skipped)
        if self.skipped:
            text = "%s more %s since the last such line; a process logs at most %d a second"
            task_logger.log(self._level, text, f"{self.skipped:,}", self._what, self._per_second)
            self.skipped = 0


class TaskLog:
    """Logs the runs of a child process."""

    def __init__(self, detail: LogTasks) -> None:
        self._detail = detail
        self._runs = Budget(MAX_RUNS_LOGGED_PER_S, logging.INFO, "runs")
        self._failures = Budget(MAX_FAILURES_LOGGED_PER_S, logging.WARNING, "failed attempts")
        self._dead = Budget(MAX_DEAD_LETTERS_LOGGED_PER_S, logging.ERROR, "dead letters and final failures")

    def started(self, tasks: Sequence[Claimed]) -> int:
        """Logs the start of these, as many as there may be lines for; gives how many, the first ones."""
        if self._detail != "all" or not task_logger.isEnabledFor(logging.INFO):
            return 0
        count = self._runs.take(len(tasks))
        for task in tasks[:count]:
            again = f", attempt {_attempts(task, task.policy).text}" if task.attempt > 1 else ""
            write(task, logging.INFO, "started%s", (again,), "started")
        return count

    def ended(self, run: LoggedRun, change: Change | None) -> None:
        """Logs how a run has ended; must be called unless it succeeded and its start was not logged."""
        try:
            self._log_end(run, change)
        except BaseException as error:  # noqa: BLE001  (of a handler of the user's: the run has ended all the same)
            _log.error("task %s: its end could not be logged: %s", run.task.task_id, type(error).__name__)
        finally:
            run.error = None  # it refers to the frames of the run, and these to the run

    def _log_end(self, run: LoggedRun, change: Change | None) -> None:
        task, outcome = run.task, outcome_of(run, change)
        took_ms = (monotonic_ns() - run.began_at_ns) / 1_000_000
        level, text, values = _end(change, outcome, _attempts(task, task.policy), took_ms)
        if not task_logger.isEnabledFor(level):
            return
        if level == logging.INFO:
            may = self._detail == "all" and (run.logged or self._runs.take())
        else:
            may = bool((self._dead if level == logging.ERROR else self._failures).take())
        if may:
            failure = None if change is None else change.error
            write(task, level, text, values, outcome, failure=failure, error=run.error, took_ms=took_ms)

    async def run(self) -> None:
        """Goes on until cancelled."""
        while True:
            await asyncio.sleep(SUMMARY_S)
            self.summarize()

    def summarize(self) -> None:
        """Logs how many runs, failures and dead letters were not logged, if there were any."""
        for budget in (self._runs, self._failures, self._dead):
            budget.summarize()


def log_settled(task: Claimed | Task, change: Change, policy: RunPolicy) -> None:
    """Logs the end of a run that its process did not outlive."""
    outcome = OUTCOMES.get(change.event, LOST)
    level, text, values = _end(change, outcome, _attempts(task, policy), None)
    if task_logger.isEnabledFor(level):
        write(task, level, text, values, outcome, failure=change.error)


def write(
    task: Claimed | Task,
    level: int,
    text: str,
    values: tuple[object, ...],
    outcome: str,
    *,
    failure: Failure | None = None,
    error: BaseException | None = None,
    took_ms: float | None = None,
) -> None:
    """One line `type[id] text`, with fields for machines, and with the traceback of a failure.

    The traceback is the one that is stored with the task: bounded, and made without trusting the class of the error.
    """
    extra: dict[str, Any] = {
        "task_id": task.task_id,
        "task_type": task.type,
        "queue": task.queue,
        "attempt": task.attempt,
        "outcome": outcome,
    }
    if took_ms is not None:
        extra["duration_ms"] = round(took_ms, 1)
    if (trace := trace_id(task.headers)) is not None:
        extra["trace_id"] = trace
    raised = None if error is None or failure is None else (type(error), error, error.__traceback__)
    record = task_logger.makeRecord(
        *(task_logger.name, level, __file__, 0, f"%s[%s] {text}", (task.type, task.task_id, *values), raised),
        func="write",
        extra=extra,
    )
    if failure is not None and failure.traceback:
        record.exc_text = redacted_text(failure.traceback.rstrip())
    task_logger.handle(record)


#: The level of a line, its text, and the values in it.
_Line = tuple[int, str, tuple[object, ...]]


def _end(change: Change | None, outcome: str, attempts: _Attempts, took_ms: float | None) -> _Line:
    """What to say of the end of a run."""
    took = "" if took_ms is None else _short(took_ms)
    if change is None or change.event is _ACK:
        if outcome == "succeeded":
            return logging.INFO, "succeeded in %s", (took,)
        return logging.WARNING, "lost its claim after %s: another worker may run it", (took,)
    if change.error is not None:
        return _failed(change, attempts)
    after = f" after {took}" if took else ""
    if change.event is Event.SNOOZE:
        return logging.INFO, "snoozed for %s", (_short(change.delay_ms),)
    if change.event is Event.STOP:
        return logging.INFO, "cancelled%s%s", (after, f": {redacted_text(change.reason)}" if change.reason else "")
    return logging.INFO, "released unfinished%s", (after,)


def _failed(change: Change, attempts: _Attempts) -> _Line:
    """What to say of a failed or lost attempt."""
    attempt = attempts.text
    if change.event is Event.RETRY:
        how = "timed out" if change.outcome == "timed_out" else "failed"
        delay = _short(change.delay_ms)
        return logging.WARNING, f"attempt %s {how}: %s (retry in %s)", (attempt, _error(change), delay)
    if change.event is Event.SNOOZE:
        delay = _short(change.delay_ms)
        return logging.WARNING, "not started: %s (retry in %s, no attempt used)", (_error(change), delay)
    if change.event is Event.REQUEUE:
        return logging.WARNING, "attempt %s lost: %s (ready to run again)", (attempt, _error(change))
    how = "dead-lettered" if change.event is Event.BURY else "failed for good"
    why = "" if change.reason in {None, "max_attempts"} else f" ({str(change.reason).replace('_', ' ')})"
    if attempts.are_used_up and change.reason == "not_retryable":
        why = " (max_retries)"
    return logging.ERROR, f"{how} after attempt %s{why}: %s", (attempt, _error(change))


class _Attempts(NamedTuple):
    """The attempts of a task, and whether it has used up those that it counts itself."""

    text: str
    are_used_up: bool


def _attempts(task: Claimed | Task, policy: RunPolicy) -> _Attempts:
    own = task.headers.get(ATTEMPTS_HEADER, "")
    most = int(own) if own.isascii() and own.isdigit() and len(own) <= _MAX_ATTEMPTS_DIGITS else 0
    if task.attempt > most:  # it counts none itself, or lost processes have used up some
        return _Attempts(f"{task.attempt}/{policy.max_attempts}", are_used_up=False)
    return _Attempts(f"{task.attempt}/{most}", are_used_up=task.attempt == most)


def _error(change: Change) -> str:
    """The error in one line, without what looks like a secret; `TimedOut` is said by the line itself."""
    failure = change.error
    if failure is None:
        return ""
    message = " ".join(failure.message.split())
    named = change.outcome in {"timed_out", "worker_lost"}
    name = "" if named else failure.name
    text = f"{name}: {message}" if name and message else name or message
    return redacted_text(storable(text, MAX_ERROR_CHARS))


def _short(milliseconds: float) -> str:
    """A duration with the digits that matter: `0.4ms`, `12ms`, `4.1s`, `2m5s`."""
    if milliseconds < 10:
        return f"{milliseconds:.2g}ms"
    if milliseconds < 1_000:
        return f"{milliseconds:.0f}ms"
    if milliseconds < 10_000:
        return f"{milliseconds / 1000:.1f}s".replace(".0s", "s")
    return format_ms(round(milliseconds / 1000) * 1000)
