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
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from holdfast.clock import SystemClock
from holdfast.core.fairness import parse_queues
from holdfast.errors import BadApp, BadUrl, HoldfastError, StoreError
from holdfast.stores.contract import Retention, Store, WorkerRecord
from holdfast.stores.open import open_store
from holdfast.version import __version__
from holdfast.worker import messages
from holdfast.worker.backoff import Backoff
from holdfast.worker.banner import show_banner
from holdfast.worker.child_process import ChildProcess
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.options import WorkerOptions
from holdfast.worker.remains import settle_remains

_log = logging.getLogger("holdfast.worker")

#: Runs promote, requeue and prune for as long as the worker lives.
UpkeepRunner = Callable[[Store, str, Retention], Awaitable[None]]

#: A child that lived this long was healthy: its restart is not delayed.
HEALTHY_MS = 60_000
#: How long children may take to leave after they were told to stop.
LEAVING_S = 3.0
#: How long the last calls to the store may take.
LAST_CALLS_S = 5.0


class Supervisor:
    """One worker: this process and its children."""

    def __init__(self, options: WorkerOptions, upkeep: UpkeepRunner) -> None:
        self._options = options.check()
        self._upkeep = upkeep
        self._clock = SystemClock()
        self._worker_id = f"{socket.gethostname()}:{os.getpid()}-{secrets.token_hex(3)}"
        self._queues = parse_queues(options.queues).queues
        self._children: dict[int, ChildProcess] = {}
        self._hello: messages.Hello | None = None
        self._store: Store | None = None
        self._opening = asyncio.Lock()
        self._heartbeat: Heartbeat | None = None
        self._duties: list[asyncio.Task[None]] = []
        self._failure: HoldfastError | None = None
        self._broken = False
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._released = 0

    async def run(self) -> int:
        """Works until a signal, or until it turns out that it cannot; gives the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        seats = [self._essential(self._keep_seat(number)) for number in range(1, self._options.processes + 1)]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([*seats, stopping], return_when=asyncio.FIRST_COMPLETED)
            await self._shut_down(seats)
        finally:
            for child in self._children.values():
                child.kill()
            stopping.cancel()
        if self._failure is not None:
            raise self._failure
        return 1 if self._hurry.is_set() or self._broken else 0

    def _on_signal(self, number: int) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        else:
            _log.info("%s: stopping; running tasks may finish for %g s", signal.Signals(number).name, self._grace_s)
            self._stopping.set()

    @property
    def _grace_s(self) -> float:
        return self._options.grace_ms / 1000

    # -- children -------------------------------------------------------------------------------------------

    async def _keep_seat(self, number: int) -> None:
        """Keeps one child alive, restarted after each death, until the worker stops."""
        backoff = Backoff(base_ms=500, cap_ms=30_000)
        incarnation = 0
        while not self._stopping.is_set():
            incarnation += 1
            started_ms = self._clock.monotonic_ms()
            how_it_ended = await self._live(number, incarnation)
            if self._stopping.is_set() or self._failure is not None:
                return
            healthy = self._clock.monotonic_ms() - started_ms >= HEALTHY_MS
            if healthy:
                backoff.reset()
            delay_s = 0.0 if healthy or incarnation == 1 else backoff.next_s()
            _log.error("child %d %s; starting another one in %.1f s", number, how_it_ended, delay_s)
            await self._pause(delay_s)

    async def _live(self, number: int, incarnation: int) -> str:
        """One child from its start until everything that it held is settled."""
        worker_id = f"{self._worker_id}:{number}.{incarnation}"
        start = messages.Start(self._options, worker_id, slow_start=incarnation > 1)
        try:
            child = await ChildProcess.start(number, start)
        except OSError as error:
            return f"could not be started: {error}"
        self._children[number] = child
        try:
            how_it_ended = await child.until_gone(lambda message: self._heed(child, message))
            if self._store is not None:
                await self._settle(child, how_it_ended)
            elif not self._stopping.is_set():
                self._fail(BadApp(f"child {number} {how_it_ended} before it was ready"))
        finally:
            del self._children[number]
        return how_it_ended

    async def _settle(self, child: ChildProcess, how_it_ended: str) -> None:
        if self._store is None or self._hello is None:
            return
        settled = await settle_remains(self._store, child, self._queues, self._hello.lease_ms, how_it_ended)
        self._released += child.released
        if child.dismissed:
            self._released += settled
        elif settled:
            _log.warning("child %d: %d of its tasks were settled as worker_lost", child.number, settled)

    async def _heed(self, child: ChildProcess, message: messages.FromChild) -> None:
        match message:
            case messages.Hello():
                await self._welcome(child, message)
            case messages.ImportFailed(line) if self._store is None:
                self._fail(BadApp(line))
            case messages.ImportFailed(line) | messages.Broken(line):
                _log.error("child %d: %s", child.number, line)
            case messages.Progress() if self._heartbeat is not None:
                self._heartbeat.nudge()

    async def _welcome(self, child: ChildProcess, hello: messages.Hello) -> None:
        """The first child says where the store is; from then on this process looks after all claims."""
        async with self._opening:
            try:
                if self._store is None:
                    await self._open(hello)
            except HoldfastError as error:
                self._fail(error)
                return
        child.send(messages.Begin())
        if self._stopping.is_set():
            child.send(messages.Quiet())

    async def _open(self, hello: messages.Hello) -> None:
        if hello.url.rstrip("/") == "sqlite:":
            raise BadUrl("sqlite:// lives in the memory of one process; a worker needs a file: sqlite:///holdfast.db")
        self._hello = hello
        store = open_store(hello.url)
        try:
            await store.announce(self._record(), hello.lease_ms)
        except HoldfastError:
            await store.close()
            raise
        self._store = store
        self._heartbeat = heartbeat = Heartbeat(store, hello.lease_ms, self._clock, self._children.values, self._record)
        show_banner(self._options, hello, store.url)
        self._duties = [self._essential(heartbeat.run()), self._essential(self._keep_up())]

    def _essential(self, duty: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose failure ends the worker: without its heartbeats it would lose its claims unnoticed."""
        task = asyncio.create_task(duty)
        task.add_done_callback(self._on_duty_done)
        return task

    def _on_duty_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, HoldfastError):
            self._fail(error)
        elif error is not None:
            _log.error("the worker stops because of a bug in Holdfast", exc_info=error)
            self._broken = True
            self._stopping.set()

    def _fail(self, error: HoldfastError) -> None:
        self._failure = self._failure or error
        self._stopping.set()
        self._hurry.set()

    # -- duties ---------------------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        """Runs the upkeep, again after an error that it did not survive."""
        backoff = Backoff(base_ms=1_000, cap_ms=30_000)
        while self._store is not None and self._hello is not None:
            try:
                await self._upkeep(self._store, self._worker_id, self._hello.retention)
            except StoreError as error:
                _log.warning("upkeep: %s", error)
            except Exception:  # noqa: BLE001  (the tasks go on without upkeep)
                _log.exception("upkeep failed")
            await asyncio.sleep(backoff.next_s())

    def _record(self) -> WorkerRecord:
        return WorkerRecord(
            worker_id=self._worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            queues=self._queues,
            types=self._hello.types if self._hello else (),
            processes=self._options.processes,
            concurrency=self._options.concurrency,
            running=sum(child.running for child in self._children.values()),
            status="draining" if self._stopping.is_set() else "running",
        )

    # -- the end --------------------------------------------------------------------------------------------

    async def _shut_down(self, seats: list[asyncio.Task[None]]) -> None:
        """Quiet, then stop, then SIGKILL; whatever is left is handed back."""
        self._stopping.set()
        self._send_all(messages.Quiet())
        await self._wait_for(seats, self._grace_s)
        for child in self._children.values():
            child.dismissed = True
        self._send_all(messages.Stop())
        await self._wait_for(seats, LEAVING_S)
        for child in self._children.values():
            child.dismissed = True
            child.kill()
        await asyncio.wait(seats, timeout=LAST_CALLS_S)
        await self._say_goodbye(seats)

    def _send_all(self, message: messages.ToChild) -> None:
        for child in self._children.values():
            child.send(message)

    async def _wait_for(self, seats: list[asyncio.Task[None]], timeout_s: float) -> None:
        """Until all children are gone, the time is up, or somebody is in a hurry."""
        hurry = asyncio.create_task(self._hurry.wait())
        gone = asyncio.create_task(asyncio.wait(seats))
        await asyncio.wait((hurry, gone), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        gone.cancel()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _say_goodbye(self, seats: list[asyncio.Task[None]]) -> None:
        left = [task for task in (*seats, *self._duties) if not task.done()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self._store is not None:
            await self._leave_store(self._store)
            _log.info("stopped; %d unfinished tasks were handed back", self._released)

    async def _leave_store(self, store: Store) -> None:
        try:
            async with asyncio.timeout(LAST_CALLS_S):
                await store.announce(self._record(), 0)
                await store.close()
        except (StoreError, TimeoutError) as error:
            _log.warning("the store could not be told of the end: %s", error)
