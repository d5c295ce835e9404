"""An app inside of a test: its tasks in memory, by a clock that the test moves, run in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

from holdfast.app import Holdfast
from holdfast.clock import SystemClock
from holdfast.core.durations import Duration, duration_ms
from holdfast.core.task import FINAL_STATES, State, Task
from holdfast.errors import BadOption, UsageError
from holdfast.testing.clock import SteppedClock
from holdfast.testing.session import Bridge
from holdfast.testing.worker import MAX_RUNS, Burst, InProcessWorker, Ran
from holdfast.worker.child.context import LogKeeper

_IN_MEMORY: Final = "sqlite://"
#: States in which a task waits for its time.
_WAITING: Final = frozenset({State.SCHEDULED, State.RETRY_PENDING})


class TestClock(SteppedClock):
    """The clock of an app in a test; it knows the worker of that test."""

    __test__ = False

    def __init__(self, start_ms: int) -> None:
        super().__init__(start_ms)
        self.worker: InProcessWorker | None = None


class _LogKeeper(LogKeeper):
    """Keeps log records with the tasks of one test."""

    def __init__(self, clock: TestClock) -> None:
        super().__init__()
        self._clock = clock

    def handle(self, record: logging.LogRecord) -> bool:
        """Adds it to what the run has to say, if it is one of this test."""
        worker = self._clock.worker
        return worker is not None and worker.is_running_here() and super().handle(record)


class AppTest:
    """An app whose tasks are kept in memory while the block lasts: `with in_memory(app) as test:`.

    Time stands still until `advance`. Tasks run when `run_due` or `advance` is called, or, in an eager test, at once.
    """

    __test__ = False

    def __init__(
        self,
        app: Holdfast,
        *,
        now: datetime | None = None,
        eager: bool = False,
        raises: bool = False,
        bridge: Bridge | None = None,
    ) -> None:
        if not isinstance(app, Holdfast):
            raise BadOption(f"{app!r} is not a Holdfast app: pass the app that your tasks are declared with")
        self.app = app
        #: Wall and monotonic time of the app, in milliseconds.
        self.clock = TestClock(_start_ms(now))
        self._eager = eager
        self._raises = raises
        self._bridge = bridge
        self._worker: InProcessWorker | None = None
        self._restore: Callable[[], None] | None = None
        self._log_keeper = _LogKeeper(self.clock)

    @property
    def now(self) -> datetime:
        """The time of the test."""
        return datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC)

    # -- running ------------------------------------------------------------------------------------------------

    def run_due(self, *, raises: bool = False) -> list[Ran]:
        """Runs everything that is due now until nothing is; gives what has run, in order.

        Errors are handled by the retry policy as in production; with `raises`, the first one is raised here.
        """
        worker = self._open()
        return worker.run(lambda: worker.run_due(Burst(raises=raises)))

    async def arun_due(self, *, raises: bool = False) -> list[Ran]:
        """As `run_due`, for async tests: coroutines run on this event loop, plain functions in threads."""
        return await self._open().run_due(Burst(raises=raises))

    def advance(self, duration: Duration, *, worker: bool = True, raises: bool = False) -> list[Ran]:
        """Lets this much time pass while a worker runs: everything that becomes due runs at its time, in order.

        With `worker=False` no worker runs meanwhile. Inside of a task the clock moves and nothing else runs, but time
        limits count: a task that is over its limit ends as in production.
        """
        milliseconds = duration_ms(duration, "advance")
        running = self._open()
        if not worker or running.is_running_here():
            self._move(running, milliseconds)
            return []
        return running.run(lambda: self._advance(running, milliseconds, raises))

    async def aadvance(self, duration: Duration, *, worker: bool = True, raises: bool = False) -> list[Ran]:
        """As `advance`, for async tests and async tasks."""
        milliseconds = duration_ms(duration, "advance")
        running = self._open()
        if not worker or running.is_running_here():
            self._move(running, milliseconds)
            await asyncio.sleep(0)  # a task that is over its time limit ends here
            return []
        return await self._advance(running, milliseconds, raises)

    def _move(self, worker: InProcessWorker, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        worker.time_passed()

    async def _advance(self, worker: InProcessWorker, milliseconds: int, raises: bool) -> list[Ran]:
        burst = Burst(raises=raises)
        until_ms = self.clock.monotonic_ms() + milliseconds
        await worker.run_due(burst)
        while (left_ms := until_ms - self.clock.monotonic_ms()) > 0:
            self._move(worker, await worker.next_due_in_ms(left_ms))
            await worker.run_due(burst)
        return burst.ran

    # -- opening and closing ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._restore is not None:
            raise UsageError("this test is open already: make another one with in_memory(app) or eager(app)")
        if isinstance(self.app.clock, TestClock):
            raise UsageError("this app is in a test already: end that block first")
        self._restore = self.app.redirect(_IN_MEMORY, self.clock, _Eager(self) if self._eager else None)
        self._worker = self.clock.worker = InProcessWorker(self.app, self._bridge)
        logging.getLogger().addHandler(self._log_keeper)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        worker = self._open()
        try:
            worker.close()
        finally:
            self._close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        worker = self._open()
        try:
            await worker.aclose()
        finally:
            self._close()

    def _close(self) -> None:
        logging.getLogger().removeHandler(self._log_keeper)
        restore, self._restore, self._worker = self._restore, None, None
        try:
            self.app.close()
        finally:
            if restore is not None:
                restore()

    def _open(self) -> InProcessWorker:
        if self._worker is None:
            raise UsageError("this test is not open: write `with in_memory(app) as test:`")
        return self._worker

    # -- eager ----------------------------------------------------------------------------------------------------

    def run_tasks(self, task_ids: Sequence[str], *, raises: bool | None = None) -> None:
        """Runs these tasks until they have ended; the clock jumps over delays and the pauses between attempts."""
        self._open().run(lambda: self.arun_tasks(task_ids, raises=raises))

    async def arun_tasks(self, task_ids: Sequence[str], *, raises: bool | None = None) -> None:
        """As `run_tasks`, for async callers."""
        worker = self._open()
        burst = Burst(raises=self._raises if raises is None else raises, only=task_ids)
        for _ in range(MAX_RUNS):
            await worker.run_due(burst)
            due_ms = _next_due_ms(await self.app.store.get(task_ids))
            if due_ms is None:
                return
            milliseconds = max(0, due_ms - self.clock.now_ms())
            self.clock.advance(milliseconds)
            worker.time_skipped(milliseconds)
        raise UsageError(f"task {task_ids[0]} has not ended after {MAX_RUNS:,} attempts: does it snooze for ever?")


class _Eager:
    """Runs what is enqueued in an eager test."""

    def __init__(self, test: AppTest) -> None:
        self._test = test

    def run(self, task_ids: Sequence[str]) -> None:
        """Runs these tasks to their end; plain functions in this thread."""
        self._test.run_tasks(task_ids)

    async def arun(self, task_ids: Sequence[str]) -> None:
        """Runs these tasks to their end; coroutines on this event loop."""
        await self._test.arun_tasks(task_ids)


def _next_due_ms(tasks: Sequence[Task | None]) -> int | None:
    """When the first of these that wait for their time is due; None if none does."""
    waiting = [task for task in tasks if task is not None and task.state not in FINAL_STATES]
    return min((task.run_at_ms for task in waiting if task.state in _WAITING), default=None)


def _start_ms(now: datetime | None) -> int:
    if now is None:
        return SystemClock().now_ms()
    if not isinstance(now, datetime) or now.utcoffset() is None:
        raise BadOption(f"now: {now!r} is not a datetime with a time zone; write datetime(2030, 1, 1, tzinfo=UTC)")
    return round(now.timestamp() * 1000)


# -- what a test calls ---------------------------------------------------------------------------------------------


def in_memory(app: Holdfast, *, now: datetime | None = None) -> AppTest:
    """Keeps the tasks of the app in memory, by a clock that only the test moves; `now` is where it starts."""
    return AppTest(app, now=now)


def eager(app: Holdfast, *, raises: bool = True, now: datetime | None = None) -> AppTest:
    """As `in_memory`, and every enqueue runs the task to its end before it returns.

    What a task raises is raised by its enqueue. With `raises=False` its retry policy applies, and the handle tells how
    it ended. No time is spent waiting: the clock jumps over delays and the pauses between attempts.
    """
    return AppTest(app, now=now, eager=True, raises=raises)


def run_due(app: Holdfast, *, raises: bool = False) -> list[Ran]:
    """Runs every task of the app that is due now, in this process, until nothing is due; gives what has run, in order.

    On whatever store the app uses: in memory, a file, or a server that the tests have started.
    """
    worker = _worker_of(app)
    if worker is not None:
        return worker.run(lambda: worker.run_due(Burst(raises=raises)))
    once = InProcessWorker(app)
    try:
        return once.run(lambda: once.run_due(Burst(raises=raises)))
    finally:
        once.close()


async def arun_due(app: Holdfast, *, raises: bool = False) -> list[Ran]:
    """As `run_due`, for async tests: coroutines run on this event loop, plain functions in threads."""
    worker = _worker_of(app)
    if worker is not None:
        return await worker.run_due(Burst(raises=raises))
    once = InProcessWorker(app)
    try:
        return await once.run_due(Burst(raises=raises))
    finally:
        await once.aclose()


def _worker_of(app: Holdfast) -> InProcessWorker | None:
    return app.clock.worker if isinstance(app.clock, TestClock) else None
