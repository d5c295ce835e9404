"""The first lines of a worker: its banner, the queues that it serves, and warnings about what will not run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.servers.loopback import HOST
from tests.servers.redis_server import RedisServer
from tests.support import WorkerProcess, eventually, run_holdfast, run_worker

SOURCE = """
from holdfast import Holdfast
app = Holdfast()

@app.task
def resize() -> str:
    return "small"

@app.task(queue="mail")
def send() -> str:
    return "sent"

@app.every("1h", queue="reports")
def report() -> None: ...

app.declare_queues("bulk")
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


def start(folder: Path, url: str, *options: str, source: str = SOURCE) -> str:
    """What a worker prints that has nothing to do."""
    (folder / "shop.py").write_text(source)
    ended = run_holdfast("worker", "shop:app", "--burst", *options, url=url, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def test_a_worker_serves_all_queues_that_its_app_declares(tmp_path: Path, url: str) -> None:
    (tmp_path / "shop.py").write_text(SOURCE)
    with Holdfast(url) as app, run_worker("shop:app", url, cwd=tmp_path) as worker:
        resize = app.task(name="shop.resize")(lambda: "")
        send = app.task(name="shop.send", queue="mail")(lambda: "")
        tasks = [resize.enqueue(), send.enqueue(), resize.using(queue="bulk").enqueue()]
        assert [task.result(20) for task in tasks] == ["small", "sent", "small"]
        assert "queues: bulk, default, mail, reports" in worker.output()
        (listed,) = json.loads(run_holdfast("workers", "ls", "--json", url=url).stdout)
        assert listed["queues"] == ["bulk", "default", "mail", "reports"]


def test_the_banner_names_store_queues_processes_and_every_type_and_ends_with_ready(tmp_path: Path, url: str) -> None:
    many = SOURCE + "".join(
        f"app.task(name='shop.a_rather_long_name_{number}')(send.function)\n" for number in range(30)
    )
    printed = start(tmp_path, url, "--processes", "2", "--concurrency", "7", source=many)
    lines = [line.partition("holdfast.worker: ")[2] for line in printed.splitlines()]
    assert f"shop:app on sqlite:///{tmp_path}/tasks.db" in lines[0]
    assert lines[1:3] == ["queues: bulk, default, mail, reports", "2 processes × 7 slots, lease 30s, grace 10s"]
    named = ", ".join(line.removeprefix("task types: ") for line in lines if line.startswith("task types: ")).split(
        ", "
    )
    assert sorted(named) == sorted(
        ["shop.report", "shop.resize", "shop.send", *(f"shop.a_rather_long_name_{number}" for number in range(30))]
    )
    assert lines.index("ready") > lines.index(next(line for line in reversed(lines) if line.startswith("task types")))
    assert lines.count("ready") == 1
    assert "WARNING" not in printed


def test_a_queue_that_no_type_uses_is_a_warning_with_a_suggestion(tmp_path: Path, url: str) -> None:
    printed = start(tmp_path, url, "--queues", "mial,default,xyz")
    assert "WARNING holdfast.worker: --queues: no task type of shop:app uses queue mial; did you mean mail?" in printed
    assert "no task type of shop:app uses queue xyz; its types use bulk, default, mail, reports" in printed
    assert "INFO    holdfast.worker: queues of the app that this worker does not serve: bulk, mail, reports" in printed
    assert printed.count("WARNING") == 2


def test_an_app_without_types_is_a_warning_with_a_hint(tmp_path: Path, url: str) -> None:
    printed = start(tmp_path, url, source="from holdfast import Holdfast\napp = Holdfast()\n")
    assert "WARNING holdfast.worker: shop:app declares no task types, so this worker runs no tasks: name" in printed
    assert 'app.include("project.mail"), or import them in shop' in printed


def test_a_paused_queue_is_a_warning_that_names_the_command(tmp_path: Path, url: str) -> None:
    with Holdfast(url) as app:
        app.queues.pause("mail")
        app.queues.pause("unrelated")
    printed = start(tmp_path, url)
    assert "WARNING holdfast.worker: queue mail is paused: its tasks wait until `holdfast queues resume mail`" in (
        printed
    )
    assert "unrelated" not in printed


@contextmanager
def worker_before(server: RedisServer, folder: Path) -> Iterator[WorkerProcess]:
    """A worker that starts while this server is down."""
    server.stop()
    with run_worker("shop:app", f"redis://{HOST}:{server.port}", cwd=folder) as worker:
        yield worker


def test_a_worker_that_starts_before_its_store_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SOURCE)
    with RedisServer() as server, worker_before(server, tmp_path) as worker:
        eventually(lambda: "waiting for the store, for up to " in worker.output(), 30)
        assert "connection refused at" in worker.output()
        assert worker.process.poll() is None
        server.start()
        eventually(lambda: "holdfast.worker: ready" in worker.output(), 60)
        assert worker.stop() == 0
