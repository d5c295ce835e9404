"""Where tasks run: coroutines on the event loop, plain functions in threads, inside middleware and a span."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NoReturn, TypeVar

from holdfast.app import Holdfast
from holdfast.core.lifecycle import Change
from holdfast.observe.runs import outcome_of
from holdfast.observe.tracing import Processing, conclude, provider
from holdfast.producer.hooks import SyncAround
from holdfast.worker.child.context import RunningTask, current
from holdfast.worker.child.execute import (
    Surround,
    call_function,
    decode,
    run_coroutine,
    run_function,
    run_in_middleware,
    unexplained,
)
from holdfast.worker.child.hooks import with_hooks
from holdfast.worker.child.interrupt import to_the_end
from holdfast.worker.child.run import Finish, Run, Starter, Threads

_log = logging.getLogger("holdfast.worker")

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")

#: What becomes of a run whose performing raised, which it never should.
Explain = Callable[[Run, BaseException], Change | None]

CallNext = Callable[[], Awaitable[Any]]
Middleware = Callable[[RunningTask, CallNext], Awaitable[Any]]
#: How long the last spans of a process may take to get out of it.
FLUSH_S: Final = 1.0


class LoopExecutor:
    """Runs coroutines on the event loop, an asyncio task each."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        perform: Callable[[Run], Coroutine[Any, Any, Change | None]],
        finish: Finish,
        explain: Explain,
    ) -> None:
        self._create_task = loop.create_task
        self._perform = perform
        self._finish = finish
        self._explain = explain

    def start(self, run: Run) -> None:
        """Starts it with the next turn of the event loop."""
        run.handle = self._create_task(self._run(run))

    async def _run(self, run: Run) -> None:
        try:
            change = await self._perform(run)
        except BaseException as error:  # noqa: BLE001  (a run that is not finished would keep its slot for ever)
            change = self._explain(run, error)
        self._finish(run, change)


class ThreadExecutor(Generic[Job, Outcome]):
    """Does jobs in threads, made when needed and kept; `finish` is called on the event loop.

    Threads that finish close together wake the event loop once. They are daemons: one that never
    returns cannot keep the process from ending.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        perform: Callable[[Job], Outcome],
        finish: Callable[[Job, Outcome], None],
        explain: Callable[[Job, BaseException], Outcome],
    ) -> None:
        self._loop = loop
        self._perform = perform
        self._finish = finish
        self._explain = explain
        self._waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._ended: deque[tuple[Job, Outcome]] = deque()
        self._collecting = False
        self._busy = 0
        self._threads = 0
        self._context = contextvars.copy_context()

    def start(self, job: Job) -> None:
        """Starts it in a free thread; there is one for every slot, unless the system has no more of them."""
        self._busy += 1
        if self._busy > self._threads:
            self._add_thread()
        self._waiting.put(job)

    def _add_thread(self) -> None:
        name = f"holdfast-task-{self._threads + 1}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError as error:
            if not self._threads:
                raise
            _log.error("%s; tasks wait for one of the %d threads there are", error, self._threads)
        else:
            self._threads += 1

    def _work(self) -> None:
        while True:
            job = self._waiting.get()
            self._ended.append((job, self._outcome(job)))
            del job  # nothing of the task stays alive in an idle thread
            if not self._collecting:
                self._collecting = True
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:
                    if not self._loop.is_closed():
                        raise
                    return  # the child has shut down without this run: its claim has been released

    def _outcome(self, job: Job) -> Outcome:
        try:
            return self._context.copy().run(self._perform, job)
        except BaseException as error:  # noqa: BLE001  (the thread must live on, and the job must end)
            return self._explain(job, error)

    def _collect(self) -> None:
        self._collecting = False  # first: what ends from now on calls again
        while self._ended:
            self._busy -= 1
            self._finish(*self._ended.popleft())


class MainThread:
    """The main thread of a process whose event loop runs in another one: it runs the `def` tasks, one at a time."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()

    def executor(
        self,
        loop: asyncio.AbstractEventLoop,
        perform: Callable[[Job], Outcome],
        finish: Callable[[Job, Outcome], None],
        explain: Callable[[Job, BaseException], Outcome],
    ) -> ThreadExecutor[Job, Outcome]:
        """Runs jobs in the main thread, which serves one executor only; in another thread while a job hangs there."""
        return _MainThreadExecutor(self._work, loop, perform, finish, explain)

    def serve(self) -> NoReturn:
        """Runs what is started, in the main thread, until the process ends."""
        while True:
            self._work.get()()


class _MainThreadExecutor(ThreadExecutor[Job, Outcome]):
    def __init__(self, main_thread: queue.SimpleQueue[Callable[[], object]], *parts: Any) -> None:
        super().__init__(*parts)
        self._main_thread = main_thread

    def _add_thread(self) -> None:
        if self._threads:
            super()._add_thread()
        else:
            self._main_thread.put(self._work)
            self._threads = 1


# -- middleware: on the event loop, wherever the task itself runs ----------------------------------------------


@dataclass(frozen=True, slots=True)
class _ThreadCall:
    """A `def` task that the chain around it waits for."""

    run: Run
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: What the middleware has set is visible in the thread.
    context: contextvars.Context
    ended: asyncio.Future[tuple[Any, BaseException | None]]


class MiddlewareChain:
    """Runs tasks inside the middleware of the app, the first one outermost."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        middlewares: Sequence[Middleware],
        threads: Threads | None = None,
        surround: Surround | None = None,
    ) -> None:
        self._loop = loop
        self._middlewares = tuple(middlewares)
        self._threads: Starter = (threads or ThreadExecutor)(loop, partial(_call, surround), _tell, _raised)

    async def perform(self, run: Run) -> Change | None:
        """Runs it to its end."""
        return await run_in_middleware(run, self._chain)

    def _chain(self, run: Run) -> Awaitable[Any]:
        task = current()
        call_next: CallNext = partial(self._innermost, run)
        for middleware in reversed(self._middlewares):
            call_next = partial(middleware, task, call_next)
        return call_next()

    async def _innermost(self, run: Run) -> Any:
        args, kwargs = decode(run)
        if run.type.is_async:
            return await run.type.function(*args, **kwargs)
        call = _ThreadCall(run, args, kwargs, contextvars.copy_context(), self._loop.create_future())
        self._threads.start(call)
        # A run that is to end has the exception in its thread; the chain waits for the end of that.
        result, error = await to_the_end(call.ended)
        if error is not None:
            raise error
        return result


def _call(surround: Surround | None, call: _ThreadCall) -> tuple[Any, BaseException | None]:
    try:
        return call.context.run(call_function, call.run, call.args, call.kwargs, surround), None
    except BaseException as error:  # noqa: BLE001  (raised again where it is awaited)
        return None, error


def _raised(_: _ThreadCall, error: BaseException) -> tuple[Any, BaseException | None]:
    return None, error


def _tell(call: _ThreadCall, outcome: tuple[Any, BaseException | None]) -> None:
    call.ended.set_result(outcome)


# -- middleware in the thread of a `def` task ------------------------------------------------------------------


def surrounding(middlewares: Sequence[SyncAround]) -> Surround | None:
    """Calls a function inside of these, the first one outermost; None if there are none."""
    if not middlewares:
        return None

    def surround(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        task = current()
        call_next: Callable[[], Any] = partial(function, *args, **kwargs)
        for middleware in reversed(middlewares):
            call_next = partial(middleware, task, call_next)
        return call_next()

    return surround


# -- tracing: a span around every run, where the process has set it up -----------------------------------------


class Tracing:
    """Surrounds what performs a run; without a provider it leaves everything as it is."""

    def __init__(self, processing: Processing | None) -> None:
        self._processing = processing

    @classmethod
    def of(cls, app: Holdfast, worker_id: str) -> Tracing:
        """As the app has set it up by now."""
        found = provider()
        if found is None:
            return cls(None)
        return cls(Processing(found, worker_id, below=app.traces == "child"))

    def coroutine(
        self, perform: Callable[[Run], Coroutine[Any, Any, Change | None]]
    ) -> Callable[[Run], Coroutine[Any, Any, Change | None]]:
        """The same on the event loop, inside of a span."""
        processing = self._processing
        if processing is None:
            return perform

        async def traced(run: Run) -> Change | None:
            with processing.span(run.task) as span:
                change = await perform(run)
                conclude(span, outcome_of(run, change), change)
                return change

        return traced

    def function(self, perform: Callable[[Run], Change | None]) -> Callable[[Run], Change | None]:
        """The same in a thread."""
        processing = self._processing
        if processing is None:
            return perform

        def traced(run: Run) -> Change | None:
            with processing.span(run.task) as span:
                change = perform(run)
                conclude(span, outcome_of(run, change), change)
                return change

        return traced


# -- both kinds of tasks ---------------------------------------------------------------------------------------


def executors(
    app: Holdfast,
    loop: asyncio.AbstractEventLoop,
    finish: Finish,
    traced: Tracing,
    threads: Threads | None = None,
    hook_threads: Threads | None = None,
) -> tuple[Starter, Starter]:
    """Where coroutines run and where functions do; inside of middleware, both begin on the event loop.

    Made when the lifespan is open: that is where many set up their tracing. Hooks run in `hook_threads`, or in
    `threads` like functions.
    """
    surround = surrounding(app.sync_middlewares)
    finish = with_hooks(app, loop, finish, hook_threads or threads or ThreadExecutor)
    if app.middlewares:
        chain = MiddlewareChain(loop, app.middlewares, threads, surround)
        executor = LoopExecutor(loop, traced.coroutine(chain.perform), finish, unexplained)
        return executor, executor
    function = run_function if surround is None else partial(run_function, surround=surround)
    return (
        LoopExecutor(loop, traced.coroutine(run_coroutine), finish, unexplained),
        (threads or ThreadExecutor)(loop, traced.function(function), finish, unexplained),
    )


async def flush_spans() -> None:
    """Flushes spans; `os._exit` skips the atexit hooks that would."""
    flush = getattr(provider(), "force_flush", None)
    if flush is not None:
        flushing = asyncio.create_task(asyncio.to_thread(flush, round(FLUSH_S * 1000)))
        await asyncio.wait([flushing], timeout=FLUSH_S)
