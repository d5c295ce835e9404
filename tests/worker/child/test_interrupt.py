"""Threads that are interrupted: at every bytecode and at random moments, and never anybody else."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import io
import itertools
import logging
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from time import sleep
from types import FrameType
from typing import Any

import pytest

from holdfast.core.lifecycle import Change, Event
from holdfast.core.retry import RunPolicy
from holdfast.errors import ClaimLost, TimedOut
from holdfast.observe.task_log import task_logger
from holdfast.runtime.interrupts import shielded, this_thread
from holdfast.stores.open import open_store
from holdfast.worker.child.context import current
from holdfast.worker.child.execute import run_function, unexplained
from holdfast.worker.child.executors import ThreadExecutor
from holdfast.worker.child.run import Ending, Run, RunContext
from tests.worker.rig import claimed, plain, run_of

LIMITED = RunPolicy(timeout_ms=60_000)


@pytest.fixture
def often() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(autouse=True, scope="module")
def no_collections() -> Iterator[None]:
    """What others want to hear of a collection of garbage would be interrupted too, and is no part of a run."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def warm(no_collections: None) -> None:
    """In some versions of Python the first trace of a function does not show its bytecodes."""
    interrupted_at(1_000_000, limited_run(lambda: None), Ending.TIMED_OUT)


def limited_run(function: Callable[..., Any]) -> Run:
    return run_of(function, claimed(policy=LIMITED))


def at_bytecode(number: int, do: Callable[[], object]) -> Callable[[FrameType, str, Any], Any]:
    """For `sys.settrace`: does this before the bytecode of this number, and traces no further."""
    count = itertools.count()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode" and next(count) == number:
            sys.settrace(None)
            do()  # what is sent meanwhile comes here, as it would at this bytecode
        return trace

    return trace


def interrupted_at(
    number: int, run: Run, ending: Ending, pause_at: int = -1, pause_s: float = 0
) -> tuple[Change | None, bool]:
    """How the run ends if it is interrupted before its bytecode of this number; and whether there was one.

    The interrupting thread may pause in the middle of that.
    """
    asked, begun = _held_lock(), _held_lock()
    reached = False

    def pause() -> None:
        begun.release()
        threading.Event().wait(pause_s)

    def tell() -> None:
        asked.acquire()
        sys.settrace(at_bytecode(pause_at, pause))
        run.end(ending)
        sys.settrace(None)
        if begun.locked():
            begun.release()

    def interrupt() -> None:
        nonlocal reached
        reached = True
        asked.release()
        begun.acquire()

    teller = threading.Thread(target=tell)
    teller.start()
    sys.settrace(at_bytecode(number, interrupt))
    try:
        change = contextvars.copy_context().run(run_function, run)
    finally:
        sys.settrace(None)
    for _ in range(100):  # if something were still on its way, it would come here
        assert this_thread.interruption is None
    if not reached:
        asked.release()
    teller.join()
    return change, reached


def _held_lock() -> threading.Lock:
    """To wait with: unlike an event, it does no harm to a thread that is interrupted meanwhile."""
    lock = threading.Lock()
    lock.acquire()
    return lock


@pytest.mark.parametrize(
    ("ending", "event"), [(Ending.TIMED_OUT, Event.RETRY), (Ending.CANCELLED, Event.STOP), (Ending.LOST, None)]
)
def test_at_whichever_bytecode_it_comes_the_run_ends_as_it_should_and_nothing_is_left(
    ending: Ending, event: Event | None
) -> None:
    def function() -> int:
        total = 0
        for number in range(3):
            total += len([number])
        return total

    seen: list[Event | None] = []
    for number in itertools.count():
        change, reached = interrupted_at(number, limited_run(function), ending)
        if not reached:
            break
        seen.append(change.event if change else None)
        assert change is None or plain(change) in (b"3", None)
    too_late = seen.count(Event.ACK)
    assert seen == [event] * (number - too_late) + [Event.ACK] * too_late
    assert too_late > 10
    assert number - too_late > 100


def two_blocks(steps: list[str], pause_s: float = 0) -> None:
    with shielded():
        steps.append("first")
        sleep(pause_s)
        steps.append("second")
    sleep(0)
    with shielded(), shielded(lambda: None):
        steps.append("third")
        sleep(pause_s)
        steps.append("fourth")
    sleep(0)


WHOLE_BLOCKS: tuple[list[str], ...] = ([], ["first", "second"], ["first", "second", "third", "fourth"])


def test_a_shielded_block_is_never_left_half_done() -> None:
    blocks_done = set()
    for number in itertools.count():
        steps: list[str] = []
        change, reached = interrupted_at(number, limited_run(partial(two_blocks, steps)), Ending.TIMED_OUT)
        if not reached:
            break
        assert change is not None
        assert steps in WHOLE_BLOCKS, number
        blocks_done.add(WHOLE_BLOCKS.index(steps))
        assert change.outcome == "timed_out" or steps == WHOLE_BLOCKS[2], number
    assert blocks_done == {0, 1, 2}
    assert number > 200


def test_the_interrupting_thread_may_be_held_up_at_any_of_its_own_bytecodes() -> None:
    def function() -> None:
        two_blocks(steps, 0.0002)
        while run.thread is None or not run.thread._sent:
            sleep(0)
        sleep(0)

    draw = random.Random(5)
    for _ in range(1_500):
        steps: list[str] = []
        number, pause_at = draw.randrange(200, 480), draw.randrange(25, 65)
        run = limited_run(function)
        change, _ = interrupted_at(number, run, Ending.TIMED_OUT, pause_at, draw.random() * 0.0003)
        assert change is not None
        assert steps in WHOLE_BLOCKS, (number, pause_at)
        assert change.outcome == "timed_out", (number, pause_at)


def test_a_task_that_is_to_end_before_it_begins_does_not_begin() -> None:
    run = limited_run(lambda: pytest.fail("was called"))
    run.end(Ending.TIMED_OUT)
    change = contextvars.copy_context().run(run_function, run)
    assert change is not None
    assert (change.event, change.outcome) == (Event.RETRY, "timed_out")


# -- with real threads ---------------------------------------------------------------------------------------


class Threads:
    """An executor, and runs in it that are interrupted at random moments."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.loop = asyncio.get_running_loop()
        self.context = RunContext(open_store("sqlite://"), self.loop)
        self.seen: Counter[tuple[str, str]] = Counter()
        self._executor = ThreadExecutor(self.loop, run_function, self._finish, unexplained)
        self._expected: dict[Run, str] = {}
        self._done = asyncio.Event()

    async def rounds(self, count: int, at_once: int, function: Callable[[int], int]) -> None:
        """Runs it so often; about half of the runs are interrupted."""
        for _ in range(count // at_once):
            self._done.clear()
            runs = [self._run(function) for _ in range(at_once)]
            for run in runs:
                self._executor.start(run)
            async with asyncio.timeout(30):
                await self._done.wait()

    def _run(self, function: Callable[[int], int]) -> Run:
        payload = b'{"number":%d}' % self.random.choice([0, 10, 1_000, 10_000])
        task = claimed(payload, policy=LIMITED)
        run = run_of(function, task, context=self.context)
        self._expected[run] = "left alone"
        if self.random.random() < 0.5:
            ending = self.random.choice([Ending.TIMED_OUT, Ending.CANCELLED, Ending.LOST])
            self._expected[run] = ending.value
            self.loop.call_later(self.random.random() ** 2 * 0.001, run.end, ending)
        return run

    def _finish(self, run: Run, change: Change | None) -> None:
        assert run.limit is not None or run.ending is not None
        if run.limit is not None:
            run.limit.stop()
        outcome = change.outcome if change is not None else "nothing"
        self.seen[self._expected.pop(run), outcome] += 1
        if not self._expected:
            self._done.set()


ALLOWED = {
    ("left alone", "succeeded"),
    ("timed_out", "succeeded"),
    ("timed_out", "timed_out"),
    ("cancelled", "succeeded"),
    ("cancelled", "cancelled"),
    ("lost", "succeeded"),
    ("lost", "nothing"),
}


def count_up(number: int) -> int:
    total = 0
    for each in range(number):
        total += each
    return total


def catch_it(number: int) -> int:
    try:
        return count_up(number)
    except (TimedOut, asyncio.CancelledError, ClaimLost):
        return 0


def with_a_lock(lock: Any, number: int) -> int:
    for each in range(number):
        with shielded():
            lock.acquire()
            total = each + 1
            lock.release()
    return number and total


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("at_once", [1, 8])
def test_thousands_of_interruptions_hit_only_those_who_are_meant(at_once: int) -> None:
    """A run that is not interrupted succeeds, also after an interrupted one in its thread; all threads live on."""

    async def scenario() -> Threads:
        threads = Threads(seed=at_once)
        await threads.rounds(2_400, at_once, count_up)
        await threads.rounds(800, at_once, catch_it)
        await threads.context.store.close()
        return threads

    before = threading.active_count()
    threads = asyncio.run(scenario())
    assert set(threads.seen) <= ALLOWED, threads.seen
    assert sum(threads.seen.values()) == 3_200
    too_late = sum(number for (_, outcome), number in threads.seen.items() if outcome == "succeeded")
    assert 100 < too_late < 3_150, threads.seen
    assert threading.active_count() - before <= at_once


@pytest.mark.usefixtures("often")
def test_no_lock_is_left_behind_by_those_who_shield_it() -> None:
    lock = threading.RLock()

    async def scenario() -> Threads:
        threads = Threads(seed=3)
        await threads.rounds(1_000, 4, lambda number: with_a_lock(lock, min(number, 300)))
        await threads.context.store.close()
        return threads

    threads = asyncio.run(scenario())
    assert set(threads.seen) <= ALLOWED, threads.seen
    assert lock.acquire(blocking=False)


def test_a_log_line_leaves_no_lock_of_logging_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    logger, handler = task_logger, logging.StreamHandler(io.StringIO())
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)

    def function() -> None:
        current().log.warning("hello %s", "world")

    for number in itertools.count():
        logger.manager._clear_cache()  # type: ignore[attr-defined]  # `isEnabledFor` takes the lock of all loggers again
        change, reached = interrupted_at(number, limited_run(function), Ending.TIMED_OUT)
        if not reached:
            break
        assert change is not None
        assert _is_free(logging._lock), number  # type: ignore[attr-defined]
        assert handler.lock is not None
        assert _is_free(handler.lock), number
    assert number > 500
    assert "hello world" in handler.stream.getvalue()


def _is_free(lock: Any) -> bool:
    """Whether another thread can have it."""
    found: list[bool] = []

    def ask() -> None:
        found.append(lock.acquire(blocking=False))
        if found[0]:
            lock.release()

    asker = threading.Thread(target=ask)
    asker.start()
    asker.join()
    return found[0]
