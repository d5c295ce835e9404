"""Windows and macOS, as far as they can be had on Linux: with what they do not have taken away."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import uvloop

from holdfast import Holdfast
from holdfast.errors import BadOption
from holdfast.stores.postgres.wakeup import watches_sockets
from holdfast.stores.sqlite import ballast
from holdfast.worker import options
from holdfast.worker.options import WorkerOptions
from tests.support import environment, eventually, run_worker

TASKS = """
from holdfast import Holdfast

app = Holdfast("sqlite:///holdfast.db")

@app.task
def double(number: int) -> int:
    return 2 * number
"""
PRODUCER = """
import tests.runtime.windows
import tasks
from holdfast.stores.sqlite.wakeup import HAS_PIPES

assert not HAS_PIPES
handle = tasks.double.enqueue(21)
print(handle.task_id, flush=True)
print(handle.result(60))
with tasks.Holdfast("sqlite://") as memory:
    print(memory.task(name="later")(len).using(delay="1h").enqueue([]).status().state)
"""
COMMAND = "import tests.runtime.windows, sys; from holdfast.cli.main import main; main(sys.argv[1:])"


def on_windows(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_producer_on_windows_enqueues_and_gets_its_result(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "produce.py").write_text(PRODUCER)
    producer = subprocess.Popen(
        [sys.executable, "produce.py"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert producer.stdout is not None
    with producer:
        assert producer.stdout.readline().strip(), "it could not enqueue"
        with run_worker("tasks:app", f"sqlite:///{tmp_path}/holdfast.db", cwd=tmp_path):
            assert producer.stdout.read().split() == ["42", "scheduled"]
    assert producer.returncode == 0


def test_the_command_line_on_windows_looks_at_a_store_and_refuses_to_be_a_worker(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    url = f"sqlite:///{tmp_path}/holdfast.db"
    with Holdfast(url) as app:
        app.task(name="tasks.double")(lambda number: number).enqueue(1)
    listed = on_windows("tasks", "ls", "--json", "--url", url, cwd=tmp_path)
    assert [task["type"] for task in json.loads(listed.stdout)["tasks"]] == ["tasks.double"], listed.stderr
    assert on_windows("doctor", "--url", url, cwd=tmp_path).returncode in (0, 1)
    refused = on_windows("worker", "tasks:app", cwd=tmp_path)
    assert refused.returncode != 0
    assert refused.stderr.strip() == (
        "holdfast: workers need process groups, which this system does not have: on Windows, run them in WSL"
    )


def test_the_server_runs_on_windows(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with log.open("w") as file:
        server = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "server", "--port", "0", "--url", f"sqlite:///{tmp_path}/holdfast.db"],
            env=environment(),
            stdout=file,
            stderr=file,
        )
    try:
        address = eventually(lambda: _address(log), timeout=30, what="the server says where it listens")
        with urllib.request.urlopen(f"{address}/healthz", timeout=30) as answer:
            assert answer.status == 200
    finally:
        server.terminate()
        server.wait(30)


def _address(log: Path) -> str | None:
    words = log.read_text().split()
    return next((word.strip(";,.") for word in words if word.startswith("http://127.0.0.1:")), None)


def test_max_memory_is_refused_where_memory_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_MEMORY", tmp_path / "none")
    with pytest.raises(BadOption, match=r"no /proc to read it from; use --max-tasks or --max-age"):
        WorkerOptions(app="tasks:app", max_memory=400_000_000).check()


def test_room_is_kept_back_without_fallocate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(ballast, "BALLAST_BYTES", 5_000_001)
    kept = ballast.Ballast(str(tmp_path / "holdfast.db"))
    assert kept.restore()
    files = list(tmp_path.iterdir())
    assert sum(path.stat().st_size for path in files) == 5_000_001
    assert sum(path.stat().st_blocks * 512 for path in files) >= 5_000_001


class Proactor(asyncio.BaseEventLoop):
    """Without `add_reader`, as the one of Windows is."""


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_event_loop_that_cannot_watch_sockets_does_not_listen_to_postgresql(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with closing(factory()) as loop:
        assert watches_sockets(loop)
    with closing(Proactor()) as loop:
        assert not watches_sockets(loop)


TESTED = """
import tests.runtime.windows
import tasks
from holdfast.testing import eager, in_memory

with eager(tasks.app):
    print(tasks.double.enqueue(4).result(1))
with in_memory(tasks.app) as test:
    handle = tasks.double.using(delay="1h").enqueue(5)
    test.advance("1h")
    print(handle.status().state)
"""


def test_an_application_is_tested_on_windows(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "tested.py").write_text(TESTED)
    done = subprocess.run(
        [sys.executable, "tested.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["8", "succeeded"], done.stderr
