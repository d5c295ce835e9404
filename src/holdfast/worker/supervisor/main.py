"""The supervisor: starts children, renews their claims, settles orphaned claims, shuts down in stages.

It never imports the user's code, so nothing that a task does can hold up a heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Coroutine
from typing import Any

from holdfast.clock import SystemClock
from holdfast.errors import BadApp, HoldfastError, UsageError
from holdfast.worker.options import WorkerOptions
from holdfast.worker.protocol import Hello
from holdfast.worker.supervisor.banner import show_banner, warn_of_paused
from holdfast.worker.supervisor.burst import until_idle
from holdfast.worker.supervisor.claims import LAST_CALLS_S, WorkerClaims
from holdfast.worker.supervisor.health import HealthServer, Systemd, WorkerHealth, WorkerMetrics
from holdfast.worker.supervisor.pool import (
    ChildGone,
    ChildPool,
    ChildReady,
    ChildServing,
    ChildUnusable,
    ProgressReported,
    SlotFailed,
    StopOrdered,
)
from holdfast.worker.supervisor.reload import watch
from holdfast.worker.supervisor.slot import Incarnation

_log = logging.getLogger("holdfast.worker")

#: How long children may take to leave after they were told to stop; after that their tasks are released for them.
LEAVING_S = 0.4
#: How long the store is given to deregister the worker, even when all other time was used up.
LEAST_GOODBYE_S = 0.5


class Supervisor:
    """One worker: this process and its children."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options.check()
        self._clock = SystemClock()
        self._worker_id = f"{socket.gethostname()}:{os.getpid()}-{secrets.token_hex(3)}"
        self._pool = ChildPool(options, self._worker_id, self._clock)
        self._claims: WorkerClaims | None = None
        self._opening = asyncio.Lock()
        self._admitting: dict[Incarnation, asyncio.Task[None]] = {}
        self._health = WorkerHealth(options.ready_within_ms, self._clock, self._pool)
        self._metrics = WorkerMetrics(self._pool, self._clock, on=options.measured)
        self._systemd = Systemd.from_environment()
        #: Tasks whose failure ends the worker.
        self._essential: set[asyncio.Task[None]] = set()
        #: Errors of children that were logged, each once until the source changes.
        self._logged: set[str] = set()
        #: Whether a child has begun to claim tasks.
        self._ready = False
        self._failure: HoldfastError | None = None
        self._broken = False
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> int:
        """Works until a signal, or until it turns out that it cannot; gives the exit code."""
        self._listen_to_signals()
        async with HealthServer(self._options.health, self._health, self._metrics):
            try:
                self._pool.add_slots(self._options.processes)
                self._begin_essential_tasks()
                await self._stopping.wait()
                await self._shut_down()
            finally:
                self._pool.kill()
        if self._failure is not None and self._claims is None:
            raise self._failure
        return 1 if self._hurry.is_set() or self._broken else 0

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGTTIN, self._pool.concurrency.step, 1)
        loop.add_signal_handler(signal.SIGTTOU, self._pool.concurrency.step, -1)

    def _on_signal(self, number: int) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        else:
            self._stop_by(signal.Signals(number).name)

    def _stop_by(self, cause: str) -> None:
        if not self._stopping.is_set():
            grace_s = self._options.grace_ms / 1000
            _log.info("%s: stopping; running tasks may finish for %g s", cause, grace_s)
            self._stop()

    def _stop(self) -> None:
        self._pool.close()
        self._stopping.set()

    # -- the events of the pool -----------------------------------------------------------------------------

    async def _handle_events(self) -> None:
        async for event in self._pool:
            match event:
                case ChildReady():
                    self._admitting[event.incarnation] = self._begin_essential(self._admit(event))
                case ChildServing():
                    self._on_serving()
                case ProgressReported():
                    if self._claims is not None:
                        self._claims.heartbeat.nudge()
                case ChildUnusable(error):
                    self._on_unusable(error)
                case ChildGone():
                    self._on_gone(event)
                case SlotFailed(error):
                    self._on_error(error)
                case StopOrdered():
                    self._stop_by("on request")

    def _on_serving(self) -> None:
        self._systemd.ready()
        if not self._ready:
            self._ready = True
            _log.info("ready")

    async def _admit(self, ready: ChildReady) -> None:
        """The first child says where the store is; from then on this process renews all claims."""
        try:
            await self._open(ready.hello)
        except HoldfastError as error:
            self._pool.refuse(ready)
            self._on_unusable(error)
        else:
            self._pool.begin(ready)

    async def _open(self, hello: Hello) -> None:
        async with self._opening:
            if self._claims is not None:
                self._claims.renew(hello)
                return
            self._claims = claims = await WorkerClaims.open(
                hello, self._options, self._pool, self._clock, self._metrics.observed
            )
        show_banner(self._options, hello, claims.queues, claims.store.url)
        self._health.opened(claims.heartbeat)
        self._begin_essential(claims.heartbeat.run())
        self._begin_essential(claims.run_maintenance(self._worker_id))
        self._begin_essential(claims.publish_types())
        self._begin_essential(warn_of_paused(claims.queues, claims.store))
        if self._options.burst:
            self._begin_essential(self._stop_when_idle(claims))

    def _on_gone(self, gone: ChildGone) -> None:
        admitting = self._admitting.pop(gone.incarnation, None)
        if admitting is not None:
            admitting.cancel()
        if self._claims is not None:
            self._begin_essential(self._settle(self._claims, gone))
            return
        if not self._pool.closed and not gone.incarnation.unusable:  # the first one: so would all others end
            how = gone.incarnation.how_it_ended
            self._on_unusable(BadApp(f"child {gone.incarnation.number} {how} before it was ready"))
        if not gone.settled.done():
            gone.settled.set_result(0)

    async def _settle(self, claims: WorkerClaims, gone: ChildGone) -> None:
        try:
            settled = await claims.settle(gone.child, gone.incarnation.how_it_ended)
        except Exception as error:  # noqa: BLE001  (raised in the slot, which ends the worker)
            if not gone.settled.done():
                gone.settled.set_exception(error)
        else:
            if not gone.settled.done():
                gone.settled.set_result(settled)

    def _on_unusable(self, error: HoldfastError) -> None:
        """The first one ends the worker; later, and where the source may change, there is another chance."""
        may_be_fixed = self._options.reload and isinstance(error, UsageError)
        if self._claims is None and not may_be_fixed:
            self._fail(error)
        elif str(error) not in self._logged:
            self._logged.add(str(error))
            _log.error("%s%s", error, "; waiting for a change" if self._options.reload else "")

    def _fail(self, error: HoldfastError) -> None:
        """Ends the worker at once; with an exit code that says "call it differently" only if it never was at work."""
        if self._claims is not None:
            _log.error("the worker stops: %s", error)
        self._failure = self._failure or error
        self._hurry.set()
        self._stop()

    # -- tasks without which the worker cannot go on ---------------------------------------------------------

    def _begin_essential_tasks(self) -> None:
        self._begin_essential(self._handle_events())
        self._begin_essential(self._pool.sample_memory())
        self._begin_essential(self._systemd.keep_informed(self._health))
        if self._options.reload:
            self._begin_essential(watch(self._replace_all))

    def _replace_all(self, reason: str) -> None:
        self._logged.clear()
        self._pool.replace_all(reason)

    async def _stop_when_idle(self, claims: WorkerClaims) -> None:
        await until_idle(claims.store, self._worker_id, self._pool, self._clock)
        _log.info("nothing is left to do: stopping")
        self._stop()

    def _begin_essential(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose failure ends the worker: without its heartbeats it would lose its claims unnoticed."""
        task = asyncio.create_task(work)
        self._essential.add(task)
        task.add_done_callback(self._on_essential_done)
        return task

    def _on_essential_done(self, task: asyncio.Task[None]) -> None:
        self._essential.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_error(error)

    def _on_error(self, error: BaseException) -> None:
        if isinstance(error, HoldfastError):
            self._fail(error)
        else:
            _log.error("the worker stops because of a bug in Holdfast", exc_info=error)
            self._broken = True
            self._stop()

    # -- the end --------------------------------------------------------------------------------------------

    async def _shut_down(self) -> None:
        """Quiet, then stop, then SIGKILL; tasks that are left are released."""
        self._systemd.stopping()
        self._pool.quiet()
        await self._wait_for_children(self._options.grace_ms / 1000)
        self._pool.dismiss()
        await self._wait_for_children(LEAVING_S)
        self._pool.kill()
        # One limit for all that is left: a store, or a partition, that is away must not hold up each of the steps.
        ends_at = asyncio.get_running_loop().time() + LAST_CALLS_S
        if self._pool.tasks:
            await asyncio.wait(self._pool.tasks, timeout=LAST_CALLS_S)
        await self._say_goodbye(ends_at)

    async def _wait_for_children(self, timeout_s: float) -> None:
        """Until all of them are gone, the time is up, or a second signal asks for a hurry."""
        if not self._pool.tasks:  # it was stopped before the first one was started
            return
        hurry = asyncio.create_task(self._hurry.wait())
        gone = asyncio.create_task(asyncio.wait(self._pool.tasks))
        await asyncio.wait((hurry, gone), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        gone.cancel()

    async def _say_goodbye(self, ends_at: float) -> None:
        now = asyncio.get_running_loop().time
        left = [task for task in (*self._pool.tasks, *self._essential) if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=max(0.0, ends_at - now()))
        if self._claims is not None:
            await self._claims.leave(max(LEAST_GOODBYE_S, ends_at - now()))
            released = self._pool.released
            _log.info("stopped; %d unfinished %s released", released, "task was" if released == 1 else "tasks were")
