"""A child process: imports the app and runs its tasks until it is told to leave."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from msgspec.structs import replace

from holdfast.app import Holdfast
from holdfast.clock import SystemClock
from holdfast.core.declared import MAX_DECLARED_TYPES, DeclaredType
from holdfast.core.fairness import queue_order
from holdfast.core.ids import IdSource
from holdfast.errors import BadApp, HoldfastError
from holdfast.observe.task_log import TaskLog
from holdfast.producer.task_type import TaskType
from holdfast.runtime.loops import fastest_loop
from holdfast.stores.contract import Store
from holdfast.stores.open import open_store, redacted
from holdfast.worker import protocol
from holdfast.worker.child.blocked import BlockedLoop, SlotWaits, end_hanging_process
from holdfast.worker.child.context import set_up_logging
from holdfast.worker.child.copies import end_copies_of
from holdfast.worker.child.executors import MainThread, ThreadExecutor, Tracing, executors, flush_spans
from holdfast.worker.child.interrupt import interrupt_system_calls, leave_signals_to_supervisor
from holdfast.worker.child.loop import LONGEST_POLL_MS, ClaimOptions, Fetcher
from holdfast.worker.child.run import Ending, Run, RunContext
from holdfast.worker.child.shields import shield_forks, shield_logging
from holdfast.worker.child.slots import EndedRuns, Slots
from holdfast.worker.child.watchdog import RunMetrics, Watchdog
from holdfast.worker.loading import load_app, opened
from holdfast.worker.options import WorkerOptions
from holdfast.worker.orphans import end_orphan
from holdfast.worker.protocol import ChildEnd
from holdfast.worker.recycle import RecycleLimits

_log = logging.getLogger("holdfast.worker")

#: How long coroutines may clean up after they were told that the worker stops; the supervisor waits little longer.
CLEANUP_S = 0.25
#: How long after that threads may take; most are in a call that cannot be interrupted.
THREADS_S = 0.05
#: At most this long, and at most half a lease, a child outlives its supervisor.
ORPHAN_S = 5.0
#: How long the last log lines may take to get out of the process.
EXIT_S = 2.0


class Child:
    """The parts of a child; handles the supervisor's messages."""

    def __init__(
        self, app: Holdfast, start: protocol.Start, lease_ms: int, channel: ChildEnd, main_thread: MainThread | None
    ) -> None:
        clock = SystemClock()
        options = start.options
        self._app = app
        self._alone = start.alone
        self._worker_id = start.worker_id
        self._loop = asyncio.get_running_loop()
        #: Where functions run, if not in threads.
        self._main_thread = main_thread
        self._channel = channel
        self._lease_ms = lease_ms
        self._metrics = RunMetrics.by(options, channel.send)
        store = _store_of(app, options.url or app.url, self._metrics)
        self._context = RunContext(store, self._loop, lease_ms, worker_id=start.worker_id)
        self._slots = Slots(
            self._loop,
            1 if start.alone else options.concurrency,
            slow_start=start.slow_start,
            on_end=EndedRuns(self._loop, channel.send).note,
        )
        self._task_log = None if options.log_tasks == "none" else TaskLog(options.log_tasks)
        if self._task_log is not None:
            self._slots.log = self._task_log.ended
            self._context.keeps_errors = True
        self._fetcher = Fetcher(
            self._context,
            self._slots,
            ClaimOptions(
                start.worker_id,
                lease_ms,
                queue_order(options.queues, app.declared_queues),
                _types_for(app, alone=start.alone),
                IdSource(clock.now_ms, os.urandom),
                _longest_poll_ms(options),
                some_types_only=len({task_type.alone for task_type in app.task_types.values()}) > 1,
            ),
            clock,
            send=channel.send if self._metrics is None else self._metrics.send,
            start=self._start,
            recycle=RecycleLimits.by(options),
            log_starts=None if self._task_log is None else self._task_log.started,
        )
        if start.paused:
            self._fetcher.pause(True)
        self._waits = SlotWaits(self._slots, _types_for(app, alone=start.alone))
        app.watch_waits(self._waits.note)
        self._watchdog = Watchdog(self._slots, self._fetcher, lease_ms, clock, channel.send)
        self._opening: asyncio.Task[Any] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._url = options.url or app.url
        self._options = options
        self._orphaned = False

    async def run(self) -> None:
        """Works until it is told to leave and everything is settled."""
        threading.Thread(target=self._listen, name="holdfast-control", daemon=True).start()
        hanging = (self._slots, self._lease_ms, _exit)
        threading.Thread(target=end_hanging_process, args=hanging, name="holdfast-watchdog", daemon=True).start()
        blocked = BlockedLoop(self._loop, self._slots)
        threading.Thread(target=blocked.watch, name="holdfast-blocked-loop", daemon=True).start()
        self._opening = asyncio.current_task()
        try:
            async with opened(self._app) as state:
                self._opening = None
                self._context.state = state
                await self._work()
        except asyncio.CancelledError:
            _log.info("told to leave before the lifespan was open")
        if self._metrics is not None:
            await self._metrics.report()
        await self._channel.send(protocol.Drained(self._fetcher.released))
        await self._context.store.close()
        await flush_spans()
        if self._orphaned:
            self._end_orphan()

    async def _work(self) -> None:
        tracing = Tracing.of(self._app, self._worker_id)
        self._context.keeps_errors = bool(self._app.failure_hooks)
        threads = None if self._main_thread is None else self._main_thread.executor
        self._loop_executor, self._thread_executor = executors(
            self._app, self._loop, self._slots.finish, tracing, threads=threads, hook_threads=ThreadExecutor
        )
        beside = [asyncio.create_task(self._watchdog.run())]
        if self._metrics is not None:
            self._metrics.watch(self._slots)
            beside.append(asyncio.create_task(self._metrics.run()))
        if self._task_log is not None:
            beside.append(asyncio.create_task(self._task_log.run()))
        try:
            await self._fetcher.run()
        finally:
            for task in beside:
                task.cancel()
            if self._task_log is not None:
                self._task_log.summarize()

    def _start(self, run: Run) -> None:
        executor = self._loop_executor if run.type.is_async else self._thread_executor
        executor.start(run)

    # -- the supervisor's messages, read in a thread that user code cannot block ------------------------------

    def _listen(self) -> None:
        for message in self._channel.messages():
            self._note_at_once(message)
            self._loop.call_soon_threadsafe(self._handle, message)
        _log.warning("the supervisor is gone; releasing unfinished tasks")
        self._orphaned = True
        self._loop.call_soon_threadsafe(self._leave)
        time.sleep(min(ORPHAN_S, self._lease_ms / 2000))
        self._end_orphan()  # the event loop is blocked, the store does not answer, or the lifespan takes long to close

    def _note_at_once(self, message: protocol.ToChild) -> None:
        """Applies at once what a run must know of its claim, however long another one blocks the event loop."""
        match message:
            case protocol.Extended(number, sent_at_ms, partition):
                self._context.extended[partition] = number, sent_at_ms + self._lease_ms
            case protocol.Lost(keys):
                for key in keys:
                    run = self._slots.running.get(key)
                    if run is not None and run.can_end_by(Ending.LOST):
                        run.lost = True

    def _end_orphan(self) -> NoReturn:
        """Tasks that still run in threads are released when these, and the processes that they started, are gone."""
        running = [run.task for run in list(self._slots.running.values()) if not run.lost]
        end_orphan(self._url, [*self._slots.left, *running], self._options.log_level, self._options.log_format)

    def _handle(self, message: protocol.ToChild) -> None:
        match message:
            case protocol.Lost(keys, reason):
                for run in self._slots.end(keys, Ending.LOST):
                    _log.warning("task %s: the claim is lost (%s); stopping it", run.task.task_id, reason)
            case protocol.CancelRequested(keys):
                self._slots.end(keys, Ending.CANCELLED)
            case protocol.Look():
                self._fetcher.look()
            case protocol.Resize(concurrency) if not self._alone:
                self._slots.resize(concurrency)
            case protocol.Pause(paused):
                self._fetcher.pause(paused)
            case protocol.Quiet():
                self._fetcher.quiet()
                self._stop_opening()
            case protocol.Stop():
                self._leave()

    def _stop_opening(self) -> None:
        if self._opening is not None:
            self._opening.cancel()

    def _leave(self) -> None:
        self._stop_opening()
        if self._leaving is None:
            self._leaving = self._loop.create_task(self._release_unfinished())

    async def _release_unfinished(self) -> None:
        """Coroutines are cancelled, and so are threads that handle an exception in time.

        What has not finished is released when this process and all that its tasks have started are gone, so that no
        two workers run it at once: by the supervisor, or for an orphan by the helper that it starts.
        """
        self._fetcher.leave()
        self._slots.end(list(self._slots.running), Ending.SHUTDOWN)
        coroutines = [run.handle for run in self._slots.running.values() if run.handle is not None]
        if coroutines:
            await asyncio.wait(coroutines, timeout=CLEANUP_S)
        await self._slots.until_none_runs(THREADS_S)
        self._slots.abandon()


def _hello(app: Holdfast, start: protocol.Start) -> protocol.Hello:
    options = start.options
    return protocol.Hello(
        url=options.url or app.url,
        lease_ms=options.lease_ms or app.lease_ms,
        types=tuple(sorted(app.task_types)),
        alone=tuple(sorted(_types_for(app, alone=True))),
        schedules=app.declared_schedules,
        queues=app.declared_queues,
        declared=_declared(app),
    )


def _declared(app: Holdfast) -> tuple[DeclaredType, ...]:
    types = [app.task_types[name].declared() for name in sorted(app.task_types)[:MAX_DECLARED_TYPES]]
    return tuple(each for each in types if each is not None)


def _types_for(app: Holdfast, *, alone: bool) -> dict[str, TaskType[..., Any]]:
    """The types that run one at a time, or all others."""
    return {name: task_type for name, task_type in app.task_types.items() if task_type.alone is alone}


def _longest_poll_ms(options: WorkerOptions) -> int:
    """A health check sees soon enough that the store answers, also while there is nothing to do."""
    return LONGEST_POLL_MS if options.health is None else min(LONGEST_POLL_MS, options.ready_within_ms // 3)


def _load(start: protocol.Start) -> Holdfast:
    """The app; `--url` also reaches what its tasks enqueue, unless the app names another store itself."""
    url = start.options.url
    if url is not None:
        os.environ["HOLDFAST_URL"] = url
    app = load_app(start.options.app)
    if url is not None and app.url != url:
        _log.warning("--url: tasks come from %s; what they enqueue goes to the app's own store", redacted(url))
    return app


def _store_of(app: Holdfast, url: str, metrics: RunMetrics | None) -> Store:
    if metrics is not None:
        app.watch_stores(metrics.observed)  # what its tasks enqueue is counted too
    if app.url == url:
        return app.store
    return open_store(url) if metrics is None else metrics.observed(open_store(url))


def _serve(
    app: Holdfast, start: protocol.Start, lease_ms: int, channel: ChildEnd, main_thread: MainThread | None
) -> int:
    """Runs the event loop of this process to its end; gives the exit code."""

    async def work() -> None:
        end_copies_of(asyncio.get_running_loop())
        await Child(app, start, lease_ms, channel, main_thread).run()

    try:
        # Never closed: that would wait for coroutines that go on after their cancellation.
        asyncio.Runner(loop_factory=fastest_loop()).run(work())
    except HoldfastError as error:
        _send(channel, protocol.Broken(f"{type(error).__name__}: {error}"))
        return 1
    return 0


def _run(channel: ChildEnd) -> int:
    start = channel.receive()
    if not isinstance(start, protocol.Start):
        return 1
    set_up_logging(start.options.log_level, start.options.log_format)
    try:
        app = _load(start)
        hello = _hello(app, start)
    except BadApp as error:
        _send(channel, protocol.ImportFailed(str(error)))
        return 2
    begin = channel.receive() if _send(channel, hello) else None
    if begin is None:
        _log.info("the supervisor was gone before this child was ready")
        return 1
    if isinstance(begin, protocol.Begin):
        start = replace(start, paused=begin.paused)  # it may have changed since the child was started
    gc.freeze()  # what was imported stays: no collection needs to look at it again
    gc.set_threshold(10_000)  # a batch of runs is no reason to look for garbage
    serve = partial(_serve, app, start, hello.lease_ms, channel)
    if not start.alone or all(each.is_async for each in _types_for(app, alone=True).values()):
        return serve(None)
    main_thread = MainThread()
    interrupt_system_calls()
    work = partial(serve, main_thread)
    threading.Thread(target=_to_the_end, args=(work,), name="holdfast-loop", daemon=True).start()
    return main_thread.serve()


def _send(channel: ChildEnd, message: protocol.FromChild) -> bool:
    """Whether the supervisor was there to read it."""
    try:
        channel.send_blocking(message)
    except ConnectionError:
        return False
    return True


def main() -> NoReturn:
    """Runs on the socket whose number is the first argument."""
    shield_forks()
    shield_logging()
    leave_signals_to_supervisor()
    channel = ChildEnd(socket.socket(fileno=int(sys.argv[1])))
    _to_the_end(partial(_run, channel))


def _to_the_end(work: Callable[[], int]) -> NoReturn:
    """Ends this process when the work has ended, with the exit code that it gives."""
    code = 1
    try:
        code = work()
    except Exception:  # noqa: BLE001  (the supervisor starts another one)
        _log.exception("a child ends because of a bug in Holdfast")
    except BaseException as error:  # noqa: BLE001  (asyncio raises these out of the event loop)
        _log.error("a child ends: %s in an asyncio task that a task has started", type(error).__name__)
    _exit(code)


def _exit(code: int) -> NoReturn:
    """Ends this process, with all of its threads; after a moment also if one of them holds the lock of an output."""
    try:
        threading.Thread(target=_exit_after, args=(EXIT_S, code), daemon=True).start()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _exit_after(seconds: float, code: int) -> None:
    time.sleep(seconds)
    os._exit(code)


if __name__ == "__main__":
    main()
