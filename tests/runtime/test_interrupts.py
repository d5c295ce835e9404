"""A signal handler may enqueue, at whichever line of an `enqueue` of its own thread it comes, on every store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.runtime.test_forks import url
from tests.support import environment

__all__ = ["url"]

#: Two calls take milliseconds; this ends a call that waits for a lock of its own thread.
HANG_S = 60
#: Interrupts an `enqueue` before its first line in this package, then before its second, until one is not reached.
SCRIPT = """
import faulthandler, signal, sys
import holdfast
from holdfast import Holdfast

FOLDER = holdfast.__path__[0]
HANG_S = int(sys.argv[2])
app = Holdfast(sys.argv[1])

@app.task
def noop(number: int) -> int:
    return number

ids = []
signal.signal(signal.SIGUSR1, lambda *_: ids.append(noop.enqueue(2).task_id))

class Interrupt:
    def __init__(self, line):
        self.lines_left = line

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if event == "line":
            self.lines_left -= 1
            if self.lines_left == 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGUSR1)
        return self

ids.append(noop.enqueue(0).task_id)
line = 0
while True:
    line += 1
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    tracer = Interrupt(line)
    sys.settrace(tracer)
    ids.append(noop.enqueue(1).task_id)
    sys.settrace(None)
    if tracer.lines_left > 0:
        break
assert line > 50, line
assert len(ids) == len(set(ids)) == 2 * line
missing = [each for each, task in zip(ids, app.status_many(ids)) if task is None]
assert not missing, missing
"""


def test_a_signal_handler_enqueues_at_any_line_of_a_call(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, url, str(HANG_S)]
    ended = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
