"""A worker inside of a test: the loop of a child and the maintenance of its supervisor, by the clock of the app."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from holdfast.admin.schedules import declare
from holdfast.app import Holdfast
from holdfast.core import lifecycle
from holdfast.core.fairness import StrictOrder
from holdfast.core.ids import IdSource, partition_of
from holdfast.core.lifecycle import Change
from holdfast.core.retry import error_name
from holdfast.core.task import Failure, Hold
from holdfast.errors import ClaimLost, TimedOut, UsageError
from holdfast.maintenance.promoter import Promoter
from holdfast.maintenance.pruner import Pruner
from holdfast.maintenance.reaper import Reaper
from holdfast.maintenance.scheduler import Scheduler
from holdfast.maintenance.service import LEADER_TTL_MS
from holdfast.observe.runs import outcome_of
from holdfast.producer.portal import Portal
from holdfast.runtime.interrupts import shielded
from holdfast.stores import documents
from holdfast.stores.contract import MAINTENANCE, Retention
from holdfast.testing.session import WORKER_ID, Bridge, CallerThread, Session
from holdfast.worker.child.context import current_run
from holdfast.worker.child.loop import ClaimOptions, Fetcher
from holdfast.worker.child.run import Ending, Run
from holdfast.worker.child.slots import Slots
from holdfast.worker.protocol import FromChild, HeldTask
from holdfast.worker.supervisor.process import KillReason, describe_kill

T = TypeVar("T")

#: Runs in one call; more than any test needs, and fewer than a task that enqueues itself for ever makes.
MAX_RUNS: Final = 10_000
#: The schedules of the app are declared as a worker of this app would do it.
_SOURCE: Final = "holdfast.testing:app"
_RETENTION: Final = Retention()
#: What a worker notes as the failure of a task, and goes on.
_OF_TASKS: Final = (Exception, SystemExit, asyncio.CancelledError, ClaimLost, TimedOut)


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt that was run in a test."""

    task_id: str
    #: The name of the task type.
    type: str
    queue: str
    attempt: int
    #: `succeeded`, `retried`, `dead_lettered`, `failed`, `snoozed`, `cancelled` or `lost`.
    outcome: str
    #: What the function raised, if it did; None for a success.
    error: BaseException | None = None


@dataclass(slots=True)
class _Running:
    """A run under way: where it is settled from, since when it runs, and whether its process would be dead."""

    slots: Slots
    began_at_ms: int
    killed: bool = False


class Burst:
    """The runs of one call, and why it stops early if it does."""

    def __init__(self, *, raises: bool, only: Sequence[str] = ()) -> None:
        self.ran: list[Ran] = []
        self.error: BaseException | None = None
        self._raises = raises
        #: The tasks whose errors are raised; all if empty.
        self._only = frozenset(only)

    def note(self, run: Run, change: Change | None) -> None:
        """Adds a run that has ended."""
        task, outcome = run.task, outcome_of(run, change)
        failed = change is not None and change.error is not None
        error = run.error if failed else None
        if failed and run.ending is Ending.TIMED_OUT:
            error = TimedOut(f"task {task.task_id} ({task.type}) {_message(change)}")
        self.ran.append(Ran(task.task_id, task.type, task.queue, task.attempt, outcome, error))
        if run.error is not None and not isinstance(run.error, _OF_TASKS):
            self.error = run.error  # Ctrl-C, pytest.fail(): meant for the test
        elif error is not None and self._raises and (not self._only or task.task_id in self._only):
            self.error = error
        elif len(self.ran) >= MAX_RUNS:
            self.error = UsageError(
                f"{MAX_RUNS:,} attempts have run in one call, the last one of {task.type}: "
                "does a task enqueue itself, or snooze, without a delay?"
            )

    def check(self) -> None:
        """Raises what ends the call."""
        if self.error is not None:
            raise self.error


def _message(change: Change | None) -> str:
    return "" if change is None or change.error is None else change.error.message


class InProcessWorker:
    """Runs the tasks of an app in this process, one at a time, when it is told to.

    Plain functions of a sync caller run in the caller's thread; those of an async caller in a thread, and coroutines
    on the caller's event loop. Coroutines of a sync caller run on an event loop in a background thread.
    """

    def __init__(self, app: Holdfast, bridge: Bridge | None = None) -> None:
        self._app = app
        self._bridge = bridge
        self._ids = IdSource(app.clock.now_ms, os.urandom)
        self._sessions: dict[asyncio.AbstractEventLoop, Session] = {}
        self._running: dict[Run, _Running] = {}
        self._portals: list[Portal] = []
        #: Those whose event loop is blocked by a sync call in it.
        self._blocked: set[Portal] = set()
        self._lock = threading.Lock()
        self._declared = False

    # -- for sync callers -------------------------------------------------------------------------------------

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of this work, done on an event loop of this worker; this thread runs plain functions for it."""
        if self._bridge is not None and _running_loop() is None:
            result: T = self._bridge.run_sync(work)
            return result
        caller = CallerThread()
        with self._free_portal() as portal:
            return caller.wait_for(portal.start(caller.serving(work)))

    @contextmanager
    def _free_portal(self) -> Iterator[Portal]:
        """One whose event loop is not blocked: an `async def` task may make a sync call, as in a real worker."""
        with self._lock:
            here = {portal for portal in self._portals if portal.is_current()}
            self._blocked |= here
            free = [portal for portal in self._portals if portal not in self._blocked]
            if not free:
                free = [Portal(_nothing)]
                self._portals += free
        try:
            yield free[0]
        finally:
            with self._lock:
                self._blocked -= here

    def close(self) -> None:
        """Closes what its event loops have open."""
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            session.close()
        for portal in self._portals:
            portal.close()
        self._portals.clear()

    async def aclose(self) -> None:
        """As `close`, for async callers."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.aclose()
        self.close()

    # -- the work -----------------------------------------------------------------------------------------------

    async def run_due(self, burst: Burst) -> list[Ran]:
        """Runs all that is due now, until nothing is."""
        session = self._session()
        await session.opened()
        await self._declare_schedules()
        while True:
            known = len(burst.ran)
            await self._maintain()
            await self._run_ready(session, burst)
            burst.check()
            if len(burst.ran) == known:
                return burst.ran

    async def next_due_in_ms(self, within_ms: int) -> int:
        """How long until the next retry, delayed task or occurrence of a schedule is due; `within_ms` at most."""
        found = [within_ms]
        for partition in await self._app.store.partitions():
            leadership = await partition.lead(MAINTENANCE, WORKER_ID, LEADER_TTL_MS)
            if leadership.held:
                due_in_ms = (await partition.promote(leadership.epoch)).next_due_in_ms
                found += [] if due_in_ms is None else [due_in_ms]
            due = await documents.schedules(partition, within_ms)
            found += [each.next_at_ms - due.now_ms for each in due.schedules if each.next_at_ms is not None]
        return min((each for each in found if each > 0), default=within_ms)

    def _session(self) -> Session:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.has_failed:
            self._sessions = {each: known for each, known in self._sessions.items() if not each.is_closed()}
            session = self._sessions[loop] = Session(self._app, loop, self._finish, self._bridge)
        return session

    async def _declare_schedules(self) -> None:
        if not self._declared:
            self._declared = True
            await declare(self._app.store, self._app.declared_schedules, _SOURCE)

    async def _maintain(self) -> None:
        store = self._app.store
        await self._renew_leases()
        for number, partition in enumerate(await store.partitions()):
            leadership = await partition.lead(MAINTENANCE, WORKER_ID, LEADER_TTL_MS)
            if leadership.held:
                for job in (Promoter(), Scheduler(store, number), Reaper(), Pruner(_RETENTION)):
                    await job.run_once(partition, leadership.epoch)

    async def _renew_leases(self) -> None:
        """As the supervisor's heartbeat: the tasks that wait for this call are still running."""
        runs = list(self._running)
        holds = [Hold(run.task.task_id, run.task.token) for run in runs]
        for run, extension in zip(runs, await self._app.store.extend(holds, self._app.lease_ms), strict=True):
            if not extension.held:
                self._end(run, Ending.LOST)
            elif extension.cancel_requested:
                self._end(run, Ending.CANCELLED)

    async def _run_ready(self, session: Session, burst: Burst) -> None:
        queues = [counts.queue for counts in await self._app.store.counts()]
        if not queues:
            return
        slots = Slots(session.loop, 1)
        fetcher = Fetcher(
            session.context,
            slots,
            ClaimOptions(WORKER_ID, self._app.lease_ms, StrictOrder(queues), self._app.task_types, self._ids),
            self._app.clock,
            send=_unsent,
            start=lambda run: self._start(session, slots, run),
        )

        def note(run: Run, change: Change | None) -> None:
            self._running.pop(run, None)
            burst.note(run, change)
            if burst.error is not None:
                fetcher.quiet()

        slots.count = note
        await fetcher.run_ready()

    def _start(self, session: Session, slots: Slots, run: Run) -> None:
        self._running[run] = _Running(slots, self._app.clock.monotonic_ms())
        session.start(run)

    def _finish(self, run: Run, change: Change | None) -> None:
        running = self._running.get(run)
        if running is not None:
            running.slots.finish(run, _killed(run) if running.killed else change)

    # -- time ---------------------------------------------------------------------------------------------------

    def is_running_here(self) -> bool:
        """Whether this is called inside of a task that this worker runs."""
        return current_run.get(None) in self._running

    def time_passed(self) -> None:
        """The clock has moved on: leases are renewed, and runs whose time is over are ended as in a real worker."""
        now_ms = self._app.clock.monotonic_ms()
        for run, running in list(self._running.items()):
            self._renew(run, now_ms)
            timeout_ms, hard_ms = run.task.policy.timeout_ms, run.task.policy.hard_timeout_ms
            ran_ms = now_ms - running.began_at_ms
            if run.ending is None and timeout_ms is not None and ran_ms >= timeout_ms:
                self._end(run, Ending.TIMED_OUT)
            elif hard_ms is not None and ran_ms >= hard_ms:
                running.killed = True
                self._end(run, Ending.LOST)

    def time_skipped(self, milliseconds: int) -> None:
        """The clock has moved on by this much, which does not count for the tasks that are running."""
        now_ms = self._app.clock.monotonic_ms()
        for run, running in list(self._running.items()):
            self._renew(run, now_ms)
            running.began_at_ms += milliseconds
            if run.limit is not None:
                run.limit.ends_at_ms += milliseconds
                run.limit.deadline_ms += milliseconds

    def _renew(self, run: Run, now_ms: int) -> None:
        if run.context is not None:
            lease = sys.maxsize, now_ms + self._app.lease_ms
            run.context.extended[partition_of(run.task.task_id)] = lease

    def _end(self, run: Run, ending: Ending) -> None:
        """Asks a run to end on its event loop; if that is the caller's own, what it raises is raised here."""
        loop = run.require_context("a test").loop
        if _running_loop() is loop:
            run.end(ending)
            return
        sent: Future[None] = Future()

        def send() -> None:
            run.end(ending)
            sent.set_result(None)

        loop.call_soon_threadsafe(send)
        if current_run.get(None) is run:
            with shielded():
                sent.result()


def _killed(run: Run) -> Change:
    """What the supervisor settles after it has killed the process of a run."""
    task = run.task
    what = describe_kill(KillReason.HARD_LIMIT, HeldTask.of(run.key, task))
    return lifecycle.time_out(
        task.task_id,
        task.token,
        Failure(error_name(TimedOut), f"{what}; its process was killed"),
        attempt=task.attempt,
        policy=task.policy,
        random_unit=random.random(),  # noqa: S311  (jitter)
    )


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _unsent(_: FromChild) -> None:
    """There is no supervisor to tell."""


async def _nothing() -> None:
    """An event loop of a test has nothing to close but its session."""
