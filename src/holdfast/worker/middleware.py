"""What an app has declared around its tasks: runs on the event loop, wherever the task itself runs."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.core.lifecycle import Change
from holdfast.worker.context import RunningTask, current
from holdfast.worker.execute import call_function, decode, run_surrounded
from holdfast.worker.lanes import ThreadLane
from holdfast.worker.run import Run
from holdfast.worker.waiting import to_the_end

CallNext = Callable[[], Awaitable[Any]]
Around = Callable[[RunningTask, CallNext], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class _ThreadCall:
    """A `def` task that the chain around it waits for."""

    run: Run
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: What the middleware has set is visible in the thread.
    context: contextvars.Context
    ended: asyncio.Future[tuple[Any, BaseException | None]]


class Surrounded:
    """Runs tasks inside the chain of what was declared around them, the first one outermost."""

    def __init__(self, loop: asyncio.AbstractEventLoop, arounds: Sequence[Around]) -> None:
        self._loop = loop
        self._arounds = tuple(arounds)
        self._threads = ThreadLane(loop, _call, _tell)

    async def perform(self, run: Run) -> Change | None:
        """Runs it to its end."""
        return await run_surrounded(run, self._chain)

    def _chain(self, run: Run) -> Awaitable[Any]:
        task = current()
        call_next: CallNext = partial(self._innermost, run)
        for around in reversed(self._arounds):
            call_next = partial(around, task, call_next)
        return call_next()

    async def _innermost(self, run: Run) -> Any:
        args, kwargs = decode(run)
        if run.type.is_async:
            return await run.type.function(*args, **kwargs)
        call = _ThreadCall(run, args, kwargs, contextvars.copy_context(), self._loop.create_future())
        self._threads.start(call)
        # Who wants its end has told the thread, and waits for it as the chain does.
        result, error = await to_the_end(call.ended)
        if error is not None:
            raise error
        return result


def _call(call: _ThreadCall) -> tuple[Any, BaseException | None]:
    try:
        return call.context.run(call_function, call.run, call.args, call.kwargs), None
    except BaseException as error:  # noqa: BLE001  (raised again where it is awaited)
        return None, error


def _tell(call: _ThreadCall, outcome: tuple[Any, BaseException | None]) -> None:
    call.ended.set_result(outcome)
