"""How a worker ends."""

from __future__ import annotations

import signal

from holdfast import Holdfast
from holdfast.core.task import State
from tests.support import alive, eventually, run_holdfast
from tests.worker.helpers import enqueue, in_state, outcomes, working


def test_sigterm_lets_running_tasks_finish_and_takes_on_no_more(jobs: Holdfast, url: str) -> None:
    with working(url, "--concurrency", "1") as worker:
        running = enqueue(jobs, "sleeps", 0.5)
        in_state(running, State.CLAIMED)
        waiting = enqueue(jobs, "sleeps", 0.0)
        assert worker.stop() == 0
        assert running.status().state is State.SUCCEEDED
        assert waiting.status().state is State.READY
        assert "0 unfinished tasks were handed back" in worker.output()


def test_after_the_grace_period_tasks_are_handed_back_without_using_up_an_attempt(jobs: Holdfast, url: str) -> None:
    with working(url, "--grace", "100ms", "--lease", "60s") as worker:
        tasks = [enqueue(jobs, "sleeps", 600.0), enqueue(jobs, "sleeps_in_thread", 600.0)]
        for task in tasks:
            in_state(task, State.CLAIMED)
        children = worker.children()
        assert worker.stop() == 0
        for task in tasks:
            assert (task.status().state, task.status().attempt) == (State.READY, 0)
            assert outcomes(task) == ["released"]
        assert "2 unfinished tasks were handed back" in worker.output()
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
