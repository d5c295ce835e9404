"""Following many tasks at once: their handles, as the tasks end."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final, Generic, TypeVar

from holdfast.clock import SystemClock
from holdfast.core.durations import Duration, duration_ms
from holdfast.core.task import FINAL_STATES
from holdfast.errors import BadOption, ResultTimeout
from holdfast.producer.handle import TaskHandle

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

#: How many tasks one call of the store asks for: their payloads, results and histories are in memory at once.
BATCH: Final = 200
#: After a call, the store is left alone for this many times as long as the call took, up to the longest pause.
_REST: Final = 3.0
_FIRST_PAUSE_SECONDS: Final = 0.005
_LONGEST_PAUSE_SECONDS: Final = 0.25
_PAUSE_GROWTH: Final = 1.5


class AsCompleted(Generic[R_co]):
    """Handles in the order in which their tasks end, for `for` and `async for`; each loop begins anew."""

    def __init__(self, handles: Iterable[TaskHandle[R_co]], timeout: Duration | None) -> None:
        self._handles = {_checked(handle).task_id: handle for handle in handles}
        self._limit_ms = None if timeout is None else duration_ms(timeout, "timeout")
        if len({handle.link for handle in self._handles.values()}) > 1:
            raise BadOption("as_completed takes handles of one app; call it once for each app")

    def __iter__(self) -> Iterator[TaskHandle[R_co]]:
        watch = _Watch(self._handles, self._limit_ms)
        for first in self._handles.values():
            while ended := first.link.run(watch.ended()):
                yield from ended
            return

    async def __aiter__(self) -> AsyncIterator[TaskHandle[R_co]]:
        watch = _Watch(self._handles, self._limit_ms)
        while ended := await watch.ended():
            for handle in ended:
                yield handle


class _Watch(Generic[R_co]):
    """Asks the store for the tasks that have not ended, in batches, by turns."""

    def __init__(self, handles: dict[str, TaskHandle[R_co]], limit_ms: int | None) -> None:
        self._handles = handles
        self._waiting = deque(handles)
        #: How many have been asked for since the last one ended, and how many not once yet.
        self._in_vain = 0
        self._unasked = len(handles)
        self._pause = _FIRST_PAUSE_SECONDS
        self._rest = 0.0
        self._clock = SystemClock()
        self._limit_ms = limit_ms
        self._ends_at_ms = None if limit_ms is None else self._clock.monotonic_ms() + limit_ms

    async def ended(self) -> list[TaskHandle[R_co]]:
        """The next ones that have ended, at least one; empty if none is left. `ResultTimeout` when time is over."""
        while self._waiting:
            await self._sleep(self._rest)
            if ended := await self._look():
                self._in_vain, self._pause = 0, _FIRST_PAUSE_SECONDS
                return ended
            if self._in_vain >= len(self._waiting):
                self._in_vain = 0
                await self._check_waiting()
                await self._sleep(self._pause)
                self._pause = min(self._pause * _PAUSE_GROWTH, _LONGEST_PAUSE_SECONDS)
        return []

    async def _look(self) -> list[TaskHandle[R_co]]:
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        began_ms = self._clock.monotonic_ms()
        try:
            tasks = await self._handles[batch[0]].link.store().get(batch)
        except BaseException:
            self._waiting.extendleft(reversed(batch))
            raise
        took_s = (self._clock.monotonic_ms() - began_ms) / 1000
        self._rest = min(took_s * _REST, _LONGEST_PAUSE_SECONDS)
        ended: list[tuple[int, TaskHandle[R_co]]] = []
        for task_id, task in zip(batch, tasks, strict=True):
            if task is None:  # pruned, or never enqueued: its result() says so
                ended.append((0, self._handles[task_id]))
            elif task.state in FINAL_STATES:
                ended.append((task.finished_at_ms or 0, self._handles[task_id].as_ended(task)))
            else:
                self._waiting.append(task_id)
        self._in_vain += len(batch)
        self._unasked -= len(batch)
        return [handle for _, handle in sorted(ended, key=lambda pair: pair[0])]

    async def _check_waiting(self) -> None:
        link = self._handles[self._waiting[0]].link
        try:
            link.check_waiting(
                f"{len(self._waiting):,} of {len(self._handles):,} tasks have not finished",
                bounded=self._limit_ms is not None,
            )
        except TimeoutError:
            raise await self._timed_out() from None

    async def _sleep(self, seconds: float) -> None:
        if self._ends_at_ms is not None:
            left_ms = self._ends_at_ms - self._clock.monotonic_ms()
            if left_ms <= 0 and self._unasked <= 0:
                raise await self._timed_out()
            seconds = min(seconds, max(0, left_ms) / 1000)
        if seconds > 0:
            import asyncio

            await asyncio.sleep(seconds)

    async def _timed_out(self) -> ResultTimeout:
        task_id = self._waiting[0]
        one = await self._handles[task_id].link.timed_out(task_id, self._limit_ms or 0)
        number = f"{len(self._waiting):,} of {len(self._handles):,} tasks did not finish in time; one of them: "
        return ResultTimeout(f"{number}{one}", task_id=task_id, state=one.state, why=one.why)


def _checked(handle: TaskHandle[R]) -> TaskHandle[R]:
    if not isinstance(handle, TaskHandle):
        raise BadOption(f"as_completed takes handles, as from enqueue() or app.handle(task_id), not {handle!r:.80}")
    return handle


def as_completed(handles: Iterable[TaskHandle[R]], *, timeout: Duration | None = None) -> AsCompleted[R]:
    """The handles in the order in which their tasks end, for `for` and `async for`.

    A handle that it gives knows the end of its task: `result()` and `wait()` ask the store no more. The store is asked
    for 200 tasks at a time, less and less often while none ends. `ResultTimeout` if they take longer than `timeout`.
    """
    return AsCompleted(handles, timeout)
