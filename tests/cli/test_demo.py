from __future__ import annotations

import io
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from holdfast.core.task import WAITING_STATES, State
from holdfast.demo.screen import LiveScreen, live
from holdfast.demo.snapshot import Snapshot, Summary
from holdfast.stores.contract import QueueCounts
from tests.cli.conftest import CommandLine
from tests.support import environment, holdfast_command, run_holdfast

PARTS = ("succeeded", "dead_lettered", "waiting", "cancelled", "failed")


def adds_up(end: dict[str, Any]) -> bool:
    return bool(end["enqueued"] == sum(end.get(part, 0) for part in PARTS))


@pytest.fixture(autouse=True)
def _temporary_files_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_the_demo_adds_up_and_its_commands_work() -> None:
    shown = run_holdfast("demo", "--for", "5s", "--json")
    assert shown.returncode == 0, shown.stderr
    end = json.loads(shown.stdout)
    assert end["adds_up"]
    assert adds_up(end)
    assert end["succeeded"] > 300
    assert end["dead_lettered"] >= 1
    assert end["cancelled"] >= 2
    queues = json.loads(run_holdfast("queues", "ls", "--url", end["url"], "--json").stdout)
    in_store = {state: sum(queue["states"].get(state, 0) for queue in queues) for state in State}
    assert in_store[State.SUCCEEDED] == end["succeeded"]
    assert in_store[State.DEAD_LETTERED] == end["dead_lettered"]
    assert sum(in_store[state] for state in WAITING_STATES) == end["waiting"]


def test_the_demo_on_a_store_with_other_tasks_leaves_them_alone(cli: CommandLine) -> None:
    (task_id,) = cli.enqueue(queue="fast")
    shown = run_holdfast("demo", "--for", "3s", "--json", "--url", cli.url)
    assert shown.returncode == 0, shown.stderr
    assert adds_up(json.loads(shown.stdout))
    assert cli.json("tasks", "show", task_id)["state"] == "ready"


def test_an_interrupted_demo_stops_its_worker_and_still_adds_up() -> None:
    command = holdfast_command("demo", "--for", "10m")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "succeeded" in line and "succeeded 0" not in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode == 0
    assert " enqueued = " in rest
    url = rest.partition("export HOLDFAST_URL=")[2].split()[0]
    assert f"Delete {Path(url.removeprefix('sqlite:///')).parent} when you are done." in rest
    assert json.loads(run_holdfast("workers", "ls", "--url", url, "--json").stdout) == []


def test_the_demo_says_so_when_its_worker_cannot_run(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nif 'worker' in sys.argv: sys.exit('no worker today')\n")
    shown = subprocess.run(
        holdfast_command("demo", "--for", "30s"),
        capture_output=True,
        text=True,
        check=False,
        env=environment(more={"PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)}),
    )
    assert shown.returncode == 1
    assert shown.stderr.startswith("holdfast: the demo's worker ended with exit code 1: ")
    assert "no worker today" in shown.stderr
    assert shown.stderr.count("\n") == 1


@pytest.mark.parametrize(("lost", "running"), [(1, 0), (-1, 0), (1, 1)])
def test_a_sum_that_is_wrong_is_told(lost: int, running: int) -> None:
    end = Summary(
        enqueued=10 + lost,
        succeeded=4,
        dead_lettered=3,
        waiting=2,
        cancelled=1,
        failed=0,
        running=running,
        url="sqlite://",
        seconds=1.0,
        worker_log="",
    )
    assert not end.adds_up


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_table_fits_the_terminal_with_whole_words(width: int) -> None:
    states = dict.fromkeys(State, 12_345)
    queues = [QueueCounts(queue="housekeeping", states=states), QueueCounts(queue="fast", states=states)]
    snapshot = Snapshot(at_ms=0, queues=queues, rates={"fast": 1_234.0})
    console = Console(width=width, file=io.StringIO())
    place = live(console)
    LiveScreen(place, "(Ctrl-C ends it)").show(snapshot, 10_000, 12_345)
    with console.capture() as captured:
        console.print(place.get_renderable())
    assert "…" not in captured.get()
    assert max(len(line.rstrip()) for line in captured.get().splitlines()) <= width
    assert ("dead-lettered" in captured.get().splitlines()[3]) == (width == 120), captured.get()
