"""How a worker ends."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.core.task import State
from holdfast.worker.options import WorkerOptions
from holdfast.worker.supervisor.main import Supervisor
from tests.support import alive, eventually, run_holdfast, run_worker
from tests.worker.helpers import enqueue, in_state, outcomes, working


def test_sigterm_lets_running_tasks_finish_and_takes_on_no_more(jobs: Holdfast, url: str) -> None:
    with working(url, "--concurrency", "1") as worker:
        running = enqueue(jobs, "sleeps", 0.5)
        in_state(running, State.CLAIMED)
        waiting = enqueue(jobs, "sleeps", 0.0)
        assert worker.stop() == 0
        assert running.status().state is State.SUCCEEDED
        assert waiting.status().state is State.READY
        assert "0 unfinished tasks were released" in worker.output()


def test_after_the_grace_period_tasks_are_released_without_using_up_an_attempt(jobs: Holdfast, url: str) -> None:
    with working(url, "--grace", "100ms", "--lease", "60s") as worker:
        tasks = [enqueue(jobs, "sleeps", 600.0), enqueue(jobs, "sleeps_in_thread", 600.0)]
        for task in tasks:
            in_state(task, State.CLAIMED)
        children = worker.children()
        assert worker.stop() == 0
        for task in tasks:
            assert (task.status().state, task.status().attempt) == (State.READY, 0)
            assert outcomes(task) == ["released"]
        assert "2 unfinished tasks were released" in worker.output()
        assert not any(map(alive, children))


def test_a_blocked_event_loop_does_not_hold_up_the_end(jobs: Holdfast, url: str) -> None:
    with working(url, "--grace", "100ms", "--lease", "60s") as worker:
        task = enqueue(jobs, "blocks_the_loop", 600.0)
        in_state(task, State.CLAIMED)
        assert worker.stop() == 0
        assert (task.status().state, task.status().attempt) == (State.READY, 0)


def test_a_second_signal_ends_at_once_and_hands_everything_back(jobs: Holdfast, url: str) -> None:
    with working(url, "--grace", "10m", "--lease", "60s") as worker:
        task = enqueue(jobs, "sleeps_in_thread", 600.0)
        in_state(task, State.CLAIMED)
        worker.signal(signal.SIGTERM)
        eventually(lambda: "SIGTERM: stopping" in worker.output())
        worker.signal(signal.SIGTERM)
        assert worker.process.wait(20) == 1
        assert (task.status().state, outcomes(task)) == (State.READY, ["released"])


def test_a_worker_is_on_the_list_while_it_lives(jobs: Holdfast, url: str) -> None:
    with working(url) as worker:
        listed = run_holdfast("workers", "ls", "--json", "--url", url).stdout
        assert f'"pid": {worker.pid}' in listed or f'"pid":{worker.pid}' in listed
        assert enqueue(jobs, "who").result(timeout=20).rpartition(":")[0] in listed
        worker.stop()
        listed = run_holdfast("workers", "ls", "--json", "--url", url).stdout
        assert str(worker.pid) not in listed


def test_an_app_that_cannot_be_imported_is_one_line_and_exit_code_2(url: str) -> None:
    for reference, said in [
        ("tests.worker.apps.broken:app", "ValueError: the settings are missing"),
        ("tests.worker.apps.nowhere:app", "there is no module 'tests.worker.apps.nowhere'"),
        ("tests.worker.apps.jobs:nothing", "has no 'nothing'"),
        ("tests.worker.apps.jobs:QUICK", "is a Retry, not a Holdfast app"),
    ]:
        ended = run_holdfast("worker", reference, url=url)
        assert ended.returncode == 2
        assert ended.stderr.startswith(f"holdfast: cannot import '{reference}': ")
        assert said in ended.stderr
        assert ended.stderr.count("\n") == 1


def test_wrong_options_are_one_line_and_exit_code_2(url: str) -> None:
    for options, said in [
        (("--concurrency", "0"), "concurrency: 0 must be from 1 to 1000"),
        (("--queues", "high=x"), "needs a weight"),
        (("--lease", "soon"), "is not a duration"),
        (("--url", "nonsense:"), "is not a store URL"),
        (("--url", "sqlite://"), "lives in the memory of one process"),
    ]:
        ended = run_holdfast("worker", "tests.worker.apps.jobs:app", *options, url=url)
        assert (ended.returncode, said in ended.stderr) == (2, True), ended.stderr
        assert ended.stderr.splitlines()[-1].startswith("holdfast: ")
        assert "Traceback" not in ended.stderr


def test_sigterm_before_the_first_child_is_started_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a name for the address of the health checks that takes long to be looked up."""

    async def scenario() -> int:
        looking, found = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        look_up = loop.getaddrinfo

        async def slowly(*args: Any, **kwargs: Any) -> Any:
            looking.set()
            await found.wait()
            return await look_up(*args, **kwargs)

        monkeypatch.setattr(loop, "getaddrinfo", slowly)
        options = WorkerOptions(app="no.such.module:app", health="localhost:0", grace_ms=600_000)
        supervisor = Supervisor(options)
        running = asyncio.create_task(supervisor.run())
        await looking.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await supervisor._stopping.wait()
        found.set()
        code = await asyncio.wait_for(running, 30)
        assert not supervisor._pool.slots
        return code

    assert asyncio.run(scenario()) == 0


def test_a_child_whose_supervisor_dies_during_its_import_does_not_call_that_a_bug(url: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, time\n"
        "open('importing', 'w').write(str(os.getpid()))\n"
        "while os.path.exists('importing'): time.sleep(0.01)\n"
        "from tests.worker.apps.jobs import app\n"
    )
    importing = tmp_path / "importing"
    with run_worker("slow:app", url, cwd=tmp_path) as worker:
        child = int(eventually(lambda: importing.exists() and importing.read_text(), 20))
        worker.process.kill()
        worker.process.wait(10)
        importing.unlink()
        eventually(lambda: not alive(child), 20)
        assert "the supervisor was gone before this child was ready" in worker.output()
        assert "bug in Holdfast" not in worker.output()
        assert "Traceback" not in worker.output()
