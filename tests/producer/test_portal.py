"""The sync face: one loop in one thread, made anew after a fork, and gone at exit without a word."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.producer.portal import PerProcess, Portal, SubmittedCall
from holdfast.runtime import forks
from tests.support import environment, eventually


async def nothing() -> None: ...


async def thread_name() -> str:
    return threading.current_thread().name


def portal_threads() -> int:
    return sum(thread.name == "holdfast-portal" for thread in threading.enumerate())


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal(nothing)
    yield portal
    portal.close()


def test_coroutines_run_in_one_background_thread(portal: Portal) -> None:
    before = portal_threads()
    with ThreadPoolExecutor(20) as pool:
        names = set(pool.map(lambda _: portal.run(thread_name()), range(200)))
    assert names == {"holdfast-portal"}
    assert portal_threads() == before + 1


def test_nothing_is_started_before_it_is_needed() -> None:
    before = portal_threads()
    portal = Portal(nothing)
    portal.close()
    assert portal_threads() == before


def test_an_error_reaches_the_caller(portal: Portal) -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match=r"^no$"):
        portal.run(fail())


def test_it_works_inside_a_running_loop(portal: Portal) -> None:
    async def main() -> str:
        return portal.run(thread_name())

    assert asyncio.run(main()) == "holdfast-portal"


def test_a_sync_call_inside_its_own_loop_is_refused_and_does_not_hang(portal: Portal) -> None:
    async def inner() -> None:
        portal.run(nothing())

    with pytest.raises(RuntimeError, match="would wait for itself; use the async one"):
        portal.run(inner())


def test_an_interrupt_of_the_caller_cancels_the_coroutine(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def endless() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def interrupted(*_: object) -> None:
        assert started.wait(10)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.producer.portal.SubmittedCall.result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            portal.run(endless())
    assert cancelled.wait(10)


def test_closing_runs_what_was_asked_for_and_ends_the_thread() -> None:
    closed = []

    async def on_close() -> None:
        closed.append(threading.current_thread().name)

    portal = Portal(on_close)
    before = portal_threads()
    portal.run(nothing())
    portal.close()
    portal.close()
    assert (closed, portal_threads()) == (["holdfast-portal"], before)
    assert portal.run(thread_name()) == "holdfast-portal"  # and it comes back when it is needed
    portal.close()
    assert portal_threads() == before


def test_closing_cancels_what_other_threads_wait_for(portal: Portal) -> None:
    started = threading.Event()

    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(portal.run, endless())
        assert started.wait(10)
        portal.close()
        with pytest.raises(CancelledError):
            waiting.result(10)


def test_an_abandoned_portal_closes_without_being_waited_for() -> None:
    closed = threading.Event()

    async def on_close() -> None:
        closed.set()

    before = portal_threads()
    portal = Portal(on_close)
    portal.run(nothing())
    portal.abandon()
    assert closed.wait(10)
    eventually(lambda: portal_threads() == before)
    gc.collect()


def test_a_value_per_process_is_made_once_however_many_threads_ask() -> None:
    made = []
    start = threading.Barrier(20)

    def make() -> list[int]:
        made.append(1)
        return made

    values = PerProcess(make)

    def ask(_: int) -> int:
        start.wait(10)
        return id(values.get())

    with ThreadPoolExecutor(20) as pool:
        assert len(set(pool.map(ask, range(20)))) == 1
    assert made == [1]
    assert values.take() is made
    assert values.peek() is None


def script(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in which every warning is an error."""
    path = tmp_path / "program.py"
    path.write_text(code)
    command = [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", str(path)]
    return subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )


FORKING = """
import os
from holdfast import Holdfast

app = Holdfast("sqlite:///tasks.db")

@app.task
def double(number: int) -> int:
    return 2 * number

first = double.enqueue(1)
parent_store = app.store
child = os.fork()
if not child:
    assert app.store is not parent_store
    assert first.status().task_id == first.task_id
    handle = double.enqueue(2)
    grandchild = os.fork()
    if not grandchild:
        print(double.enqueue(3).task_id, flush=True)
        os._exit(0)
    assert os.waitpid(grandchild, 0)[1] == 0
    print(handle.task_id, flush=True)
    app.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert app.store is parent_store
print(double.enqueue(4).task_id, flush=True)
app.close()
"""


def test_parent_and_forked_children_each_enqueue_on_their_own(tmp_path: Path) -> None:
    done = script(tmp_path, FORKING)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(set(done.stdout.split())) == 3


LEAVING = """
import sys
from holdfast import Holdfast

app = Holdfast("sqlite:///tasks.db")

@app.task
def double(number: int) -> int:
    return 2 * number

print(double.enqueue(1).task_id)
{end}
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "app.close()", "raise KeyboardInterrupt"])
def test_a_program_ends_without_a_word_of_ours(tmp_path: Path, end: str) -> None:
    done = script(tmp_path, LEAVING.format(end=end))
    assert len(done.stdout.strip()) == 32
    ours = [line for line in done.stderr.splitlines() if "holdfast" in line or "ignored" in line or "Warning" in line]
    assert ours == []


def test_an_app_that_nobody_refers_to_any_more_lets_go_of_its_thread() -> None:
    from holdfast import Holdfast

    before = portal_threads()
    app = Holdfast("sqlite://")
    task_type = app.task(name="nothing")(lambda: None)
    handle = task_type.enqueue()
    del app, task_type
    gc.collect()
    assert handle.status().type == "nothing"  # a handle keeps what it needs
    del handle
    gc.collect()
    eventually(lambda: portal_threads() == before)


def test_a_signal_handler_may_call_while_its_thread_is_calling(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, names = SubmittedCall, []

    def interrupted(*arguments: Any) -> Any:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGUSR1)
        return whole(*arguments)

    before = signal.signal(signal.SIGUSR1, lambda *_: names.append(portal.run(thread_name())))
    try:
        monkeypatch.setattr("holdfast.producer.portal.SubmittedCall", interrupted)
        names.append(portal.run(thread_name()))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert names == ["holdfast-portal"] * 2


def test_a_signal_handler_may_come_while_a_value_is_made() -> None:
    discarded: list[int] = []
    numbers = iter(range(10))

    def make() -> list[int]:
        number = next(numbers)
        if number == 0:
            signal.raise_signal(signal.SIGUSR1)
        return [number]

    values = PerProcess(make, discarded.extend)
    in_handler: list[list[int]] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: in_handler.append(values.get()))
    try:
        assert values.get() is in_handler[0]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (in_handler, discarded) == ([[1]], [0])


def test_a_pid_that_comes_again_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    values = PerProcess(object)
    mine = values.get()
    monkeypatch.setattr(forks, "_generation", forks.process()[0] + 1)  # as in a child that got the pid of its ancestor
    assert values.get() is not mine
