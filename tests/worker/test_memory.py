"""What processes use, and how a kill by the kernel is told from any other."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.task import State
from holdfast.worker import recycle
from holdfast.worker.recycle import OomKills, cgroup_counters, died_of_memory, read_counter, resident_bytes
from tests.support import eventually, run_worker
from tests.worker.apps.unruly import make_app

CGROUPS = Path("/sys/fs/cgroup/memory")


def test_memory_is_read_of_any_process_and_is_nothing_when_it_is_gone() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert resident_bytes(os.getpid()) > 10 * 2**20
    assert resident_bytes(ended.pid) == 0


@pytest.mark.parametrize(
    "text", ["low 0\nhigh 0\nmax 4\noom 1\noom_kill {}\noom_group_kill 0\n", "oom_kill_disable 0\noom_kill {}\n"]
)
def test_a_kill_counts_when_it_was_one_of_the_last_seconds(tmp_path: Path, text: str) -> None:
    counter = tmp_path / "counter"
    counter.write_text(text.format(3))
    kills = OomKills([tmp_path / "missing", counter])
    assert not kills.lately()
    counter.write_text(text.format(4))
    for _ in range(9):
        kills.sample()
        assert kills.lately()
    kills.sample()  # ten seconds later it explains nothing any more
    assert not kills.lately()


def test_without_any_counter_nothing_is_said_of_memory(tmp_path: Path) -> None:
    assert not OomKills([tmp_path / "missing"]).lately()
    assert read_counter(tmp_path / "missing") is None
    assert died_of_memory(0) == "was killed by the kernel because memory ran out"
    assert died_of_memory(812 * 2**20).endswith("memory ran out (it used 812 MB when last seen)")


@pytest.mark.parametrize(
    ("groups", "mounts", "first"),
    [
        (
            "0::/system.slice/worker.service",
            "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
            "/sys/fs/cgroup/system.slice/worker.service/memory.events",
        ),
        (
            "4:cpu,cpuacct:/x\n3:memory:/docker/abc\n0::/",
            "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory",
            "/sys/fs/cgroup/memory/memory.oom_control",  # a container sees its own group as the root
        ),
    ],
)
def test_the_counter_of_the_own_cgroup_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, mounts: str, first: str
) -> None:
    for name, text in (("7/cgroup", groups), ("self/mountinfo", mounts)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(recycle, "_PROC", tmp_path)
    assert str(next(cgroup_counters(7))) == first


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup of 200 MB, for a worker and its children."""
    group = CGROUPS / f"holdfast-test-{secrets.token_hex(4)}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(200 * 2**20))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield group
    eventually(lambda: not (group / "cgroup.procs").read_text().split(), 20)
    group.rmdir()


def test_a_child_that_the_kernel_kills_for_memory_is_reported_as_such(tmp_path: Path, small_cgroup: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    with make_app(url) as app, run_worker("tests.worker.apps.unruly:app", url) as worker:
        (small_cgroup / "cgroup.procs").write_text(str(worker.pid))  # before it has any children
        eventually(lambda: "task types:" in worker.output(), 20)
        task = app.task_types["eats"].enqueue(1_000)
        eventually(lambda: task.status().state is State.DEAD_LETTERED, 30)
        (attempt,) = task.history()
        assert attempt.outcome == "worker_lost"
        assert attempt.error is not None
        assert "was killed by the kernel because memory ran out" in attempt.error.message
        eventually(lambda: "was killed by the kernel because memory ran out" in worker.output())
