"""A child process: imports the app and runs its tasks until it is told to leave."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from typing import Any, NoReturn

from holdfast.clock import SystemClock
from holdfast.core.fairness import parse_queues
from holdfast.core.ids import IdSource
from holdfast.core.lifecycle import Change
from holdfast.errors import BadApp, HoldfastError
from holdfast.stores.contract import Store
from holdfast.stores.open import open_store, redacted
from holdfast.worker import messages
from holdfast.worker.channel import ChildEnd
from holdfast.worker.counting import Counting, Watchable
from holdfast.worker.ends import Ends
from holdfast.worker.execute import run_coroutine, run_function
from holdfast.worker.fetch import LONGEST_POLL_MS, Claims, Fetcher
from holdfast.worker.lanes import Finish, LoopLane, ThreadLane
from holdfast.worker.lifespan import opened
from holdfast.worker.loading import App, TaskType, load_app
from holdfast.worker.logs import set_up_logging
from holdfast.worker.middleware import Surrounded
from holdfast.worker.options import WorkerOptions
from holdfast.worker.pulse import Pulse
from holdfast.worker.run import Ending, Run, Workplace
from holdfast.worker.slots import Slots
from holdfast.worker.tracing import Tracing, flush_spans
from holdfast.worker.wear import Wear

_log = logging.getLogger("holdfast.worker")

#: How long coroutines may clean up after they were told that the worker stops; the supervisor waits little longer.
CLEANUP_S = 0.25
#: How long after that threads may take; most are in a call that hears nothing of it.
THREADS_S = 0.05
#: At most this long, and at most half a lease, a child outlives its supervisor.
ORPHAN_S = 5.0


class Child:
    """The parts of a child, and what the supervisor's messages do to them."""

    def __init__(self, app: App, start: messages.Start, lease_ms: int, channel: ChildEnd) -> None:
        clock = SystemClock()
        options = start.options
        self._app = app
        self._alone = start.alone
        self._worker_id = start.worker_id
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._lease_ms = lease_ms
        self._counting = Counting.by(options, channel.send)
        store = _store_of(app, options.url or app.url, self._counting)
        self._workplace = Workplace(store, self._loop, lease_ms, worker_id=start.worker_id)
        self._slots = Slots(
            self._loop,
            1 if start.alone else options.concurrency,
            slow_start=start.slow_start,
            on_end=Ends(self._loop, channel.send).note,
        )
        self._fetcher = Fetcher(
            self._workplace,
            self._slots,
            Claims(
                start.worker_id,
                lease_ms,
                parse_queues(options.queues),
                _types_for(app, alone=start.alone),
                IdSource(clock.now_ms, os.urandom),
                _longest_poll_ms(options),
                some_types_only=len({task_type.alone for task_type in app.task_types.values()}) > 1,
            ),
            clock,
            tell=channel.send if self._counting is None else self._counting.tell,
            start=self._start,
            wear=Wear.by(options),
        )
        self._pulse = Pulse(self._slots, self._fetcher, lease_ms, clock, channel.send)
        self._opening: asyncio.Task[Any] | None = None
        self._leaving: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Works until it is told to leave and everything is settled."""
        threading.Thread(target=self._listen, name="holdfast-control", daemon=True).start()
        self._opening = asyncio.current_task()
        try:
            async with opened(self._app) as state:
                self._opening = None
                self._workplace.state = state
                await self._work()
        except asyncio.CancelledError:
            _log.info("told to leave before the lifespan was open")
        if self._counting is not None:
            await self._counting.report()
        await self._channel.send(messages.Drained(self._fetcher.released))
        await self._workplace.store.close()
        await flush_spans()

    async def _work(self) -> None:
        tracing = Tracing.of(self._app, self._worker_id)
        self._loop_lane, self._thread_lane = _lanes(self._app, self._loop, self._slots.finish, tracing)
        beside = [asyncio.create_task(self._pulse.run())]
        if self._counting is not None:
            self._counting.watch(self._slots)
            beside.append(asyncio.create_task(self._counting.run()))
        try:
            await self._fetcher.run()
        finally:
            for task in beside:
                task.cancel()

    def _start(self, run: Run) -> None:
        lane = self._loop_lane if run.type.is_async else self._thread_lane
        lane.start(run)

    # -- the supervisor's messages, read in a thread that user code cannot block ------------------------------

    def _listen(self) -> None:
        for message in self._channel.messages():
            self._loop.call_soon_threadsafe(self._heed, message)
        _log.warning("the supervisor is gone; handing back what is not finished")
        self._loop.call_soon_threadsafe(self._leave, True)
        time.sleep(min(ORPHAN_S, self._lease_ms / 2000))
        os._exit(1)  # the event loop is blocked, or the store does not answer: the leases will run out

    def _heed(self, message: messages.ToChild) -> None:
        match message:
            case messages.Extended(number, sent_at_ms):
                self._slots.extended(number, sent_at_ms + self._lease_ms)
            case messages.Lost(keys, reason):
                for run in self._slots.end(keys, Ending.LOST):
                    _log.warning("task %s: the claim is lost (%s); stopping it", run.task.task_id, reason)
            case messages.CancelRequested(keys):
                self._slots.end(keys, Ending.CANCELLED)
            case messages.Look():
                self._fetcher.look()
            case messages.Resize(concurrency) if not self._alone:
                self._slots.resize(concurrency)
            case messages.Quiet():
                self._fetcher.quiet()
                self._stop_opening()
            case messages.Stop():
                self._leave(orphaned=False)

    def _stop_opening(self) -> None:
        if self._opening is not None:
            self._opening.cancel()

    def _leave(self, orphaned: bool) -> None:
        self._stop_opening()
        if self._leaving is None:
            self._leaving = self._loop.create_task(self._hand_back(orphaned))

    async def _hand_back(self, orphaned: bool) -> None:
        """Coroutines are cancelled and settle, as do threads that heed the exception in time.

        What threads still run is released by the supervisor after this process has ended, so that no two
        workers run it at once; only an orphan has to do that itself.
        """
        self._fetcher.leave()
        self._slots.end(list(self._slots.running), Ending.SHUTDOWN)
        coroutines = [run.handle for run in self._slots.running.values() if run.handle is not None]
        if coroutines:
            await asyncio.wait(coroutines, timeout=CLEANUP_S)
        await self._slots.until_none_runs(THREADS_S)
        self._slots.abandon(release=orphaned)


def _hello(app: App, start: messages.Start) -> messages.Hello:
    options = start.options
    return messages.Hello(
        url=options.url or app.url,
        lease_ms=options.lease_ms or app.lease_ms,
        retention=app.retention,
        types=tuple(sorted(app.task_types)),
        alone=tuple(sorted(_types_for(app, alone=True))),
        schedules=tuple(getattr(app, "declared_schedules", ())),
    )


def _types_for(app: App, *, alone: bool) -> dict[str, TaskType]:
    """The types that run one at a time, or all others."""
    return {name: task_type for name, task_type in app.task_types.items() if task_type.alone is alone}


def _lanes(
    app: App, loop: asyncio.AbstractEventLoop, finish: Finish, traced: Tracing
) -> tuple[LoopLane, LoopLane | ThreadLane[Run, Change | None]]:
    """Where coroutines run and where functions do; inside of middleware, both begin on the event loop.

    Made when the lifespan is open: that is where many set up their tracing.
    """
    if app.middlewares:
        lane = LoopLane(loop, traced.coroutine(Surrounded(loop, app.middlewares).perform), finish)
        return lane, lane
    return LoopLane(loop, traced.coroutine(run_coroutine), finish), ThreadLane(
        loop, traced.function(run_function), finish
    )


def _longest_poll_ms(options: WorkerOptions) -> int:
    """Whoever asks for its health hears soon enough that the store answers, also while there is nothing to do."""
    return LONGEST_POLL_MS if options.health is None else min(LONGEST_POLL_MS, options.ready_within_ms // 3)


def _load(start: messages.Start) -> Any:
    """The app; `--url` also reaches what its tasks enqueue, unless the app names another store itself."""
    url = start.options.url
    if url is not None:
        os.environ["HOLDFAST_URL"] = url
    app = load_app(start.options.app)
    if url is not None and app.url != url:
        _log.warning("--url: tasks come from %s; what they enqueue goes to the app's own store", redacted(url))
    return app


def _store_of(app: App, url: str, counting: Counting | None) -> Store:
    if counting is not None and isinstance(app, Watchable):
        app.watch_stores(counting.observed)  # what its tasks enqueue is counted too
    if app.url == url:
        return app.store
    return open_store(url) if counting is None else counting.observed(open_store(url))


async def _work(app: App, start: messages.Start, lease_ms: int, channel: ChildEnd) -> None:
    await Child(app, start, lease_ms, channel).run()


def _run(channel: ChildEnd) -> int:
    start = channel.receive()
    if not isinstance(start, messages.Start):
        return 1
    set_up_logging(start.options.log_level, start.options.log_format)
    try:
        app = _load(start)
        hello = _hello(app, start)
    except BadApp as error:
        channel.send_blocking(messages.ImportFailed(str(error)))
        return 2
    channel.send_blocking(hello)
    if channel.receive() is None:
        return 1
    gc.freeze()  # what was imported stays: no collection needs to look at it again
    gc.set_threshold(10_000)  # a batch of runs is no reason to look for garbage
    try:
        # Never closed: that would wait for coroutines that do not heed their cancellation.
        asyncio.Runner(loop_factory=_loop_factory()).run(_work(app, start, hello.lease_ms, channel))
    except HoldfastError as error:
        channel.send_blocking(messages.Broken(f"{type(error).__name__}: {error}"))
        return 1
    return 0


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _ignore_signals() -> None:
    """The supervisor decides when a child leaves; a handler, unlike SIG_IGN, is not inherited by subprocesses."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


def main() -> NoReturn:
    """Runs on the socket whose number is the first argument."""
    _ignore_signals()
    channel = ChildEnd(socket.socket(fileno=int(sys.argv[1])))
    code = 1
    try:
        code = _run(channel)
    except Exception:  # noqa: BLE001  (the supervisor starts another one)
        _log.exception("a child ends because of a bug in Holdfast")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that still run are left behind


if __name__ == "__main__":
    main()
