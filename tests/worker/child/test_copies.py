"""Processes that a task forks and that leave its code: they end, and never act as the child that they are a copy of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, environment

_SCRIPT = """
import asyncio, os, signal, sys, time
from holdfast import Holdfast
from holdfast.core.task import State
from holdfast.worker.child.copies import end_copies_of
from tests.worker.rig import Rig

kind, way = sys.argv[1:]
this = os.getpid()
found = []

def fork():
    if pid := os.fork():
        found.append(pid)
        return False
    return True

def leave():
    if way == "exit":
        sys.exit(3)
    if way == "raise":
        raise KeyError("gone")

async def wait():
    if way == "wait":
        await asyncio.sleep(0)
        open("went-on", "w").close()

async def on_the_loop():
    if fork():
        leave()
        await wait()

def in_a_thread():
    if fork():
        leave()

async def neighbour():
    for _ in range(50):
        await asyncio.sleep(0)
        if os.getpid() != this:
            open("second-copy", "w").close()

async def on_the_hook(task, result):
    await on_the_loop()

app = Holdfast("sqlite://")
function = on_the_loop if kind == "async" else in_a_thread
if kind == "middleware":
    @app.around
    async def around(task, call_next):
        return await call_next()
if kind in ("hook", "async hook"):
    app.on_success((lambda task, result: in_a_thread()) if kind == "hook" else on_the_hook)
    function = lambda: None

async def scenario():
    end_copies_of(asyncio.get_running_loop())
    rig = Rig(function, is_async=kind == "async", app=app)
    beside = asyncio.create_task(neighbour())
    await rig.enqueue(1)
    await rig.drain(State.SUCCEEDED)
    await beside
    await rig.store.close()

asyncio.run(scenario())
assert os.getpid() == this
ends_at = time.monotonic() + 20
while not (ended := os.waitpid(found[0], os.WNOHANG))[0] and time.monotonic() < ends_at:
    time.sleep(0.01)
if not ended[0]:
    os.kill(found[0], signal.SIGKILL)
    sys.exit("the forked copy goes on")
print(os.waitstatus_to_exitcode(ended[1]))
"""


@pytest.mark.parametrize(
    ("kind", "way", "code"),
    [
        ("async", "return", 0),
        ("async", "exit", 3),
        ("async", "raise", 1),
        ("async", "wait", 1),
        ("thread", "return", 0),
        ("thread", "exit", 3),
        ("thread", "raise", 1),
        ("middleware", "exit", 3),
        ("hook", "return", 0),
        ("hook", "exit", 3),
        ("async hook", "return", 0),
        ("async hook", "exit", 3),
    ],
)
def test_a_forked_process_that_leaves_the_code_of_its_task_ends(kind: str, way: str, code: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SCRIPT, kind, way],
        cwd=tmp_path,
        env={**environment(), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{code}\n"), done.stderr
    assert list(tmp_path.iterdir()) == []
