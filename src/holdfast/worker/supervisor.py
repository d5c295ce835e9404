"""The supervisor: starts children, keeps their claims alive, settles for the dead, shuts down in stages.

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
from holdfast.errors import HoldfastError
from holdfast.worker import messages
from holdfast.worker.banner import show_banner
from holdfast.worker.burst import until_idle
from holdfast.worker.child_process import ChildProcess
from holdfast.worker.counting import counts
from holdfast.worker.crew import Crew
from holdfast.worker.health import HealthServer
from holdfast.worker.metrics import WorkerMetrics
from holdfast.worker.options import WorkerOptions
from holdfast.worker.reload import watch
from holdfast.worker.store_side import LAST_CALLS_S, StoreSide, UpkeepRunner
from holdfast.worker.systemd import Systemd
from holdfast.worker.vitals import Vitals

_log = logging.getLogger("holdfast.worker")

#: How long children may take to leave after they were told to stop; what they do not hand back is handed back for them.
LEAVING_S = 0.4


class Supervisor:
    """One worker: this process and its children."""

    def __init__(self, options: WorkerOptions, upkeep: UpkeepRunner) -> None:
        self._options = options.check()
        self._upkeep = upkeep
        self._clock = SystemClock()
        self._worker_id = f"{socket.gethostname()}:{os.getpid()}-{secrets.token_hex(3)}"
        self._crew = Crew(options, self._worker_id, self._clock, self, self._essential)
        self._side: StoreSide | None = None
        self._opening = asyncio.Lock()
        self._vitals = Vitals(options.ready_within_ms, self._clock, self._crew)
        self._metrics = WorkerMetrics(self._crew, self._clock, on=counts(options))
        self._systemd = Systemd.from_environment()
        self._duties: list[asyncio.Task[None]] = []
        self._failure: HoldfastError | None = None
        self._broken = False
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> int:
        """Works until a signal, or until it turns out that it cannot; gives the exit code."""
        self._listen_to_signals()
        async with HealthServer(self._options.health, self._vitals, self._metrics):
            try:
                self._crew.take_seats(self._options.processes)
                self._take_on_duties()
                await self._stopping.wait()
                await self._shut_down()
            finally:
                self._crew.kill()
        if self._failure is not None:
            raise self._failure
        return 1 if self._hurry.is_set() or self._broken else 0

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGTTIN, self._crew.concurrency.step, 1)
        loop.add_signal_handler(signal.SIGTTOU, self._crew.concurrency.step, -1)

    def _on_signal(self, number: int) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        else:
            grace_s = self._options.grace_ms / 1000
            _log.info("%s: stopping; running tasks may finish for %g s", signal.Signals(number).name, grace_s)
            self._stop()

    def _stop(self) -> None:
        self._crew.close()
        self._stopping.set()

    # -- for the children -----------------------------------------------------------------------------------

    @property
    def opened(self) -> bool:
        """Whether the app was imported once and its store answers."""
        return self._side is not None

    async def welcome(self, hello: messages.Hello) -> None:
        """The first child says where the store is; from then on this process looks after all claims."""
        async with self._opening:
            if self._side is not None:
                self._side.renew(hello)
                return
            self._side = side = await StoreSide.open(
                hello, self._options, self._crew, self._clock, self._metrics.observed
            )
        show_banner(self._options, hello, side.store.url)
        self._vitals.opened(side.heartbeat)
        self._duties += [
            self._essential(side.heartbeat.run()),
            self._essential(side.keep_up(self._upkeep, self._worker_id)),
        ]
        if self._options.burst:
            self._duties.append(self._essential(self._stop_when_idle(side)))

    async def settle(self, child: ChildProcess, how_it_ended: str) -> int:
        """Settles what a child has left behind; how many tasks that were."""
        return await self._side.settle(child, how_it_ended) if self._side else 0

    def serves(self) -> None:
        """A child reserves: the worker is at work."""
        self._systemd.ready()

    def nudge(self) -> None:
        """There is progress to record."""
        if self._side is not None:
            self._side.heartbeat.nudge()

    def fail(self, error: HoldfastError) -> None:
        """Ends the worker at once."""
        self._failure = self._failure or error
        self._hurry.set()
        self._stop()

    # -- duties ---------------------------------------------------------------------------------------------

    def _take_on_duties(self) -> None:
        self._duties.append(self._essential(self._crew.keep_an_eye_on_memory()))
        self._duties.append(self._essential(self._systemd.keep_informed(self._vitals)))
        if self._options.reload:
            self._duties.append(self._essential(watch(self._crew.replace_all)))

    async def _stop_when_idle(self, side: StoreSide) -> None:
        await until_idle(side.store, self._worker_id, self._crew, self._clock)
        _log.info("nothing is left to do: stopping")
        self._stop()

    def _essential(self, duty: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose failure ends the worker: without its heartbeats it would lose its claims unnoticed."""
        task = asyncio.create_task(duty)
        task.add_done_callback(self._on_duty_done)
        return task

    def _on_duty_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, HoldfastError):
            self.fail(error)
        elif error is not None:
            _log.error("the worker stops because of a bug in Holdfast", exc_info=error)
            self._broken = True
            self._stop()

    # -- the end --------------------------------------------------------------------------------------------

    async def _shut_down(self) -> None:
        """Quiet, then stop, then SIGKILL; whatever is left is handed back."""
        self._systemd.stopping()
        self._crew.quiet()
        await self._wait_for_children(self._options.grace_ms / 1000)
        self._crew.dismiss()
        await self._wait_for_children(LEAVING_S)
        self._crew.kill()
        await asyncio.wait(self._crew.tasks, timeout=LAST_CALLS_S)
        await self._say_goodbye()

    async def _wait_for_children(self, timeout_s: float) -> None:
        """Until all of them are gone, the time is up, or somebody is in a hurry."""
        hurry = asyncio.create_task(self._hurry.wait())
        gone = asyncio.create_task(asyncio.wait(self._crew.tasks))
        await asyncio.wait((hurry, gone), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        gone.cancel()

    async def _say_goodbye(self) -> None:
        left = [task for task in (*self._crew.tasks, *self._duties) if not task.done()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self._side is not None:
            await self._side.leave()
            _log.info("stopped; %d unfinished tasks were handed back", self._crew.released)
