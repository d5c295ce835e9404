"""A signal handler may enqueue, at whichever line of an `enqueue` of its own thread it comes, on every store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.test_forks import url
from tests.support import environment

__all__ = ["url"]

#: Two calls take milliseconds; this ends a call that waits for a lock of its own thread.
HANG_S = 60
#: Interrupts an `enqueue` before its first line in this package, then before its second, until one is not reached.
SCRIPT = """
import concurrent.futures, faulthandler, queue, signal, sys, threading
import holdfast
from holdfast import Holdfast

HANG_S = int(sys.argv[2])
WATCHED = (holdfast.__path__[0], *(sys.modules[name].__file__ for name in sys.argv[4:]))
app = Holdfast(sys.argv[1])

@app.task
def noop(number: int) -> int:
    return number

def enqueue(number):
    if sys.argv[3] == "enqueue":
        return noop.enqueue(number).task_id
    return app.enqueue_many([noop.prepare(number)])[0].task_id

ids = []
signal.signal(signal.SIGUSR1, lambda *_: ids.append(enqueue(2)))

class Interrupt:
    def __init__(self, line):
        self.lines_left = line

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(WATCHED):
            return None
        if event == "line":
            self.lines_left -= 1
            if self.lines_left == 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGUSR1)
        return self

ids.append(enqueue(0))
line = 0
while True:
    line += 1
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    tracer = Interrupt(line)
    sys.settrace(tracer)
    ids.append(enqueue(1))
    sys.settrace(None)
    if tracer.lines_left > 0:
        break
assert line > 50, line
assert len(ids) == len(set(ids)) == 2 * line
missing = [each for each, task in zip(ids, app.status_many(ids)) if task is None]
assert not missing, missing
"""


def test_a_signal_handler_enqueues_at_any_line_of_a_call(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, url, str(HANG_S), "enqueue"]
    ended = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_signal_handler_enqueues_at_any_line_of_a_call_that_waits_for_the_event_loop(tmp_path: Path) -> None:
    # Also at the lines of what the standard library waits with: the event loop may need a lock that they hold.
    places = ["threading", "queue", "concurrent.futures._base"]
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, "sqlite:///many.db", str(HANG_S), "enqueue_many", *places]
    ended = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


#: The same in the first call of a process: one forked process a line, and the modules are imported by then.
FIRST_CALL = """
import faulthandler, os, signal, sys
import holdfast
from holdfast import Holdfast
import holdfast.stores.sqlite.store, uvloop  # noqa

PLACES = tuple(f"{holdfast.__path__[0]}/{place}" for place in sys.argv[4:])
HANG_S, number, step = map(int, sys.argv[1:4])

def first_call(line, left):
    app = Holdfast("sqlite:///first.db")

    @app.task(name="noop")
    def noop() -> None: ...

    ids = []
    signal.signal(signal.SIGUSR1, lambda *_: ids.append(noop.enqueue().task_id))

    def interrupt(frame, event, argument):
        nonlocal left
        if not frame.f_code.co_filename.startswith(PLACES):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGUSR1)
        return interrupt

    sys.settrace(interrupt)
    ids.append(noop.enqueue().task_id)
    sys.settrace(None)
    if left > 0:
        return 3
    assert len(set(ids)) == 2 and None not in app.status_many(ids), line
    return 0

while True:
    pid = 0 if step == 0 else os.fork()
    if not pid:
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        try:
            os._exit(first_call(number, number))
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 3:
        break
    assert code == 0, (number, code)
    number += step
assert number > 30, number
"""


def first_call(script: str, folder: Path, number: int, step: int, *places: str) -> tuple[int, str]:
    command = [sys.executable, "-W", "ignore", "-c", script, str(HANG_S), str(number), str(step), *places]
    ended = subprocess.run(command, env=environment(), cwd=folder, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
def test_a_signal_handler_enqueues_at_any_line_that_starts_the_threads_of_a_process(step: int, tmp_path: Path) -> None:
    places = ("stores/sqlite/call_thread.py", "producer/portal.py", "runtime")
    assert first_call(FIRST_CALL, tmp_path, 1, step, *places) == (0, "")


@pytest.mark.parametrize("number", [5, 20, 40, 60, 90, 120, 150])
def test_a_signal_handler_enqueues_while_the_first_call_imports_modules(number: int, tmp_path: Path) -> None:
    script = FIRST_CALL.replace("import holdfast.stores.sqlite.store, uvloop  # noqa", "")
    assert first_call(script, tmp_path, number, 0, "") == (0, "")
