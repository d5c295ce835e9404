"""What one event loop of a test has open: the lifespan of the app, and where its tasks run."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from holdfast.app import Holdfast
from holdfast.producer.portal import SubmittedCall
from holdfast.runtime.interrupts import shielded, this_thread
from holdfast.worker.child.executors import ThreadExecutor, Tracing, executors
from holdfast.worker.child.run import Finish, Run, RunContext, Starter
from holdfast.worker.loading import CLOSING_S, opened

T = TypeVar("T")

#: Runs an async function to its end for a sync caller.
RunSync = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]
#: Runs a plain function in a thread for an async caller.
InThread = Callable[[Callable[[], None]], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Bridge:
    """How a framework goes from sync to async code and back, where it has its own rules for threads."""

    run_sync: RunSync
    in_thread: InThread


#: As the history of tasks names it: the id of the worker, a colon, which child.
WORKER_ID: Final = "test:1"


class Session:
    """The app, opened on one event loop; its lifespan is entered and left in one asyncio task."""

    def __init__(
        self, app: Holdfast, loop: asyncio.AbstractEventLoop, finish: Finish, bridge: Bridge | None = None
    ) -> None:
        self.loop = loop
        self._bridge = bridge
        self.context = RunContext(
            app.store, loop, app.lease_ms, worker_id=WORKER_ID, clock=app.clock, keeps_errors=True
        )
        self._app = app
        self._finish = finish
        self._executors: tuple[Starter, Starter] | None = None
        self._ready: asyncio.Future[None] = loop.create_future()
        self._stop = asyncio.Event()
        self._holding = loop.create_task(self._hold())

    @property
    def has_failed(self) -> bool:
        """Whether the lifespan could not be opened, or was closed with its event loop's tasks."""
        return self._holding.done()

    async def opened(self) -> None:
        """Returns when the lifespan is open; raises what it raised."""
        await asyncio.shield(self._ready)

    def start(self, run: Run) -> None:
        """Starts it where tasks of its kind run."""
        if self._executors is None:
            # Not before the lifespan is open: that is where many set up their tracing.
            tracing = Tracing.of(self._app, WORKER_ID)
            threads = partial(TestThreads, bridge=self._bridge)
            self._executors = executors(self._app, self.loop, self._finish, tracing, threads)
        coroutines, functions = self._executors
        (coroutines if run.type.is_async else functions).start(run)

    async def _hold(self) -> None:
        try:
            async with opened(self._app) as state:
                self.context.state = state
                self._ready.set_result(None)
                with contextlib.suppress(asyncio.CancelledError):  # the event loop ends: then the lifespan ends too
                    await self._stop.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def aclose(self) -> None:
        """Closes the lifespan, on its own event loop."""
        self._stop.set()
        await asyncio.wait([self._holding])

    def close(self) -> None:
        """Closes the lifespan from outside: at once, or when its event loop goes on."""
        if self.loop.is_closed() or self._holding.done():
            return
        if not self.loop.is_running():
            self.loop.run_until_complete(self.aclose())
            return
        closing = asyncio.run_coroutine_threadsafe(self.aclose(), self.loop)
        if not _is_running_here(self.loop):
            closing.result(2 * CLOSING_S)


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


# -- plain functions in the thread of the test ---------------------------------------------------------------


class CallerThread:
    """The thread of a sync caller, which runs plain functions while it waits: with its connections and its patches."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        #: Whether it is running one: then what it waits for there cannot wait for it.
        self.busy = False

    async def serving(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Does this work on the event loop; plain functions that it starts run in the waiting thread."""
        _caller.set(self)
        return await work()

    def do(self, job: Callable[[], None]) -> None:
        """Has the waiting thread do this."""
        self.busy = True
        self._jobs.put(job)

    def wait_for(self, call: SubmittedCall[T]) -> T:
        """The result; does jobs meanwhile."""
        call.when_ended(lambda: self._jobs.put(None))
        outer = this_thread.interruption
        with shielded(call.cancel):  # a task of this thread that waits here can be ended, but not those inside
            this_thread.interruption = None
            try:
                while (job := self._jobs.get()) is not None:
                    job()
                return call.result()
            except BaseException:
                call.cancel()
                raise
            finally:
                this_thread.interruption = outer


_caller: ContextVar[CallerThread] = ContextVar("holdfast_testing_caller")


class TestThreads:
    """Runs plain functions in the thread of the sync caller if there is one that waits, else in threads."""

    __test__ = False

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        perform: Callable[[Any], Any],
        finish: Callable[[Any, Any], None],
        explain: Callable[[Any, BaseException], Any],
        bridge: Bridge | None = None,
    ) -> None:
        self._loop = loop
        self._bridge = bridge
        #: So that they are not collected while they run.
        self._under_way: set[asyncio.Task[None]] = set()
        self._perform = perform
        self._finish = finish
        self._explain = explain
        self._threads: ThreadExecutor[Any, Any] = ThreadExecutor(loop, perform, finish, explain)

    def start(self, job: Any) -> None:
        """Starts it with the next turn of that thread."""
        caller = _caller.get(None)
        if caller is not None and not caller.busy:
            caller.do(partial(self._do, job, contextvars.copy_context(), caller))
        elif self._bridge is not None:
            task = self._loop.create_task(self._bridge.in_thread(partial(self._do, job, contextvars.copy_context())))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        else:
            self._threads.start(job)

    def _do(self, job: Any, context: contextvars.Context, caller: CallerThread | None = None) -> None:
        """In the context of the thread; what follows on the event loop, hooks for example, in that of the call."""
        try:
            outcome = contextvars.copy_context().run(self._perform, job)
        except BaseException as error:  # noqa: BLE001  (becomes the end of the run)
            outcome = self._explain(job, error)
        if caller is not None:
            caller.busy = False
        self._loop.call_soon_threadsafe(self._finish, job, outcome, context=context)
