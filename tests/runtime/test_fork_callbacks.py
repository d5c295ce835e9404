"""Forks whose callbacks are left by an exception, as a signal handler may raise one: Python ignores it there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import ROOT, environment

#: Raises before each bytecode of what comes before the fork.
_SCRIPT = """
import functools, itertools, os, sys
os.register_at_fork(after_in_child=functools.partial(os._exit, 0))
from holdfast import Holdfast
from holdfast.runtime import forks
from holdfast.stores.sqlite.call_thread import Turns
from tests.worker.child.test_interrupt import _is_free

app = Holdfast("sqlite:///forks.db")

@app.task
def noop() -> None: ...

noop.enqueue()
CODE = {forks._before.__code__, forks.note_acquired.__code__, Turns.pause.__code__}
sys.unraisablehook = lambda _: None

def raising(number):
    count = itertools.count()

    def trace(frame, event, _):
        if frame.f_code not in CODE:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(count) == number:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    return trace

sys.settrace(raising(10**6))
sys.settrace(None)
engine = app.store._engine
for number in itertools.count():
    sys.settrace(raising(number))
    pid = os.fork()
    more = sys.gettrace() is None
    sys.settrace(None)
    os.waitpid(pid, 0)
    if not more:
        break
    assert not forks._this_thread.forks, number
    locks = [forks._turn]
    for thread in (engine._reader, engine._writer, engine._direct):
        assert not thread._pauses, number
        locks += [thread._next, thread._in_use]
    assert all(map(_is_free, locks)), (number, list(map(_is_free, locks)))
assert number > 150, number
noop.enqueue()
print("done")
"""


def test_an_exception_before_a_fork_leaves_no_lock_held(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SCRIPT],
        cwd=tmp_path,
        env={**environment(), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
