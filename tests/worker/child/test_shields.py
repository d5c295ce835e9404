"""Code of the standard library that an interruption must not leave half done."""

from __future__ import annotations

import io
import itertools
import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.worker.child.run import Ending
from holdfast.worker.child.shields import ShieldedLock, shield_logging
from tests.support import ROOT, environment
from tests.worker.child.test_interrupt import _is_free, interrupted_at, limited_run, no_collections

__all__ = ["no_collections"]

#: Interrupts a task that forks before each third of its bytecodes, those of all callbacks of the fork included.
_INTERRUPTED_FORKS = """
import functools, os
os.register_at_fork(after_in_child=functools.partial(os._exit, 0))  # before all others: the child is not traced
import itertools, signal
from holdfast import Holdfast
from holdfast.runtime import forks
from holdfast.worker.child.interrupt import leave_signals_to_supervisor
from holdfast.worker.child.run import Ending
from holdfast.worker.child.shields import shield_forks
from tests.worker.child.test_interrupt import _is_free, interrupted_at, limited_run

shield_forks()
leave_signals_to_supervisor()
app = Holdfast("sqlite:///forks.db")

@app.task
def noop() -> None: ...

noop.enqueue()

def function() -> int:
    os.waitpid(os.fork(), 0)
    return 5

late, engine = 0, app.store._engine
for number in itertools.count(0, 3):
    change, reached = interrupted_at(number, limited_run(function), Ending.TIMED_OUT)
    if not reached:
        break
    if change.outcome == "succeeded":
        late += 1
    else:
        assert (change.outcome, late) == ("timed_out", 0), number
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), number
    assert _is_free(forks._turn), number
    for thread in (engine._reader, engine._writer, engine._direct):
        assert _is_free(thread._next) and _is_free(thread._in_use), number
assert number > 600 and late < 100, (number, late)
noop.enqueue()
print("done")
"""
#: A thread interrupts the task in the middle of each kind of fork.
_INTERRUPTED_INSIDE = """
import multiprocessing, os, pty, subprocess, sys, threading
from holdfast.worker.child.interrupt import leave_signals_to_supervisor
from holdfast.worker.child.run import Ending
from holdfast.worker.child.shields import shield_forks
from tests.worker.child.test_interrupt import limited_run
import contextvars
from holdfast.worker.child.execute import run_function

def interrupt() -> None:
    if run is not None and run.ending is None:
        teller = threading.Thread(target=run.end, args=(Ending.TIMED_OUT,))
        teller.start()
        teller.join()

run = None
shield_forks()
leave_signals_to_supervisor()
os.register_at_fork(before=interrupt)

def child() -> None:
    for _ in range(1000):
        sum(range(10))  # what is meant for the parent would be raised here
    os.write(told, b"x")
    os._exit(0)

def fork() -> None:
    if not os.fork():
        child()

def forkpty() -> None:
    if not pty.fork()[0]:
        child()

def process() -> None:
    multiprocessing.get_context("fork").Process(target=child).start()

def program() -> None:
    code = f"import os; os.write({told}, b'x')"
    subprocess.Popen([sys.executable, "-c", code], preexec_fn=lambda: None, pass_fds=[told])

for way in (fork, forkpty, process, program):
    heard, told = os.pipe()
    run = limited_run(way)
    change = contextvars.copy_context().run(run_function, run)
    run = None
    assert change.outcome == "timed_out", (way, change)
    os.close(told)
    assert os.read(heard, 1) == b"x", way
print("done")
"""


def run_script(script: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        cwd=folder,
        env={**environment(), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_at_whichever_bytecode_of_a_fork_it_comes_it_is_raised_and_no_lock_is_left_held(tmp_path: Path) -> None:
    run_script(_INTERRUPTED_FORKS, tmp_path)


def test_what_comes_during_a_fork_of_any_kind_is_raised_after_it_in_the_parent_only(tmp_path: Path) -> None:
    run_script(_INTERRUPTED_INSIDE, tmp_path)


# -- logging ---------------------------------------------------------------------------------------------------


@pytest.fixture
def shielded_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a child process; as before at the end."""
    monkeypatch.setattr(logging, "_lock", logging._lock)  # type: ignore[attr-defined]
    monkeypatch.setattr(logging.Logger, "handle", logging.Logger.handle)
    shield_logging()


@pytest.mark.usefixtures("shielded_logging")
def test_a_log_line_of_the_users_own_logger_leaves_no_lock_of_logging_held() -> None:
    logger, handler = logging.getLogger("tests.mine"), logging.StreamHandler(io.StringIO())
    logger.propagate = False
    logger.addHandler(handler)

    def function() -> None:
        logging.getLogger("tests.mine").warning("hello %s", "world")

    for number in itertools.count():
        logger.manager._clear_cache()  # type: ignore[attr-defined]  # `isEnabledFor` takes the lock of all loggers again
        change, reached = interrupted_at(number, limited_run(function), Ending.TIMED_OUT)
        if not reached:
            break
        assert change is not None
        assert _is_free(logging._lock), number  # type: ignore[attr-defined]
        assert handler.lock is not None
        assert _is_free(handler.lock), number
    assert number > 700
    assert "hello world" in handler.stream.getvalue()


def test_the_lock_that_shields_is_a_reentrant_lock() -> None:
    lock = ShieldedLock()
    with lock, lock:
        assert not _is_free(lock)
    assert _is_free(lock)
    with pytest.raises(RuntimeError):
        lock.release()
    holder = threading.Thread(target=lock.acquire)
    holder.start()
    holder.join()
    assert not lock.acquire(blocking=False)
    assert not lock.acquire(timeout=0.001)
    lock._at_fork_reinit()
    assert lock.acquire(blocking=False)
