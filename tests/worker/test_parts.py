"""Small parts: the channel, the backoff, what is settled for a dead child."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.fairness import QueueShare
from holdfast.core.task import NewTask, State
from holdfast.errors import BadApp, StoreTooNew, StoreUnavailable
from holdfast.stores.contract import Reserve
from holdfast.stores.open import open_store
from holdfast.worker.backoff import Backoff, persistently
from holdfast.worker.loading import load_app
from holdfast.worker.protocol import Begin, ChildEnd, Held, HeldTask, Lost, SupervisorEnd
from holdfast.worker.supervisor.claims import settle_orphans
from holdfast.worker.supervisor.process import ChildProcess
from tests.worker.rig import IDS


def test_messages_pass_in_both_directions_even_when_the_other_end_does_not_read_yet() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        supervisor, child = await SupervisorEnd.open(ours), ChildEnd(theirs)
        large = Held(1, [HeldTask(key, "a" * 32, "1.1.x", 1) for key in range(20_000)])  # more than a socket holds
        sending = asyncio.create_task(child.send(large))
        async for message in supervisor.messages():
            assert message == large
            break
        await sending
        supervisor.send(Begin())
        supervisor.send(Lost([1], "gone"))
        assert await asyncio.to_thread(child.receive) == Begin()
        assert await asyncio.to_thread(child.receive) == Lost([1], "gone")
        supervisor.close()
        assert await asyncio.to_thread(child.receive) is None
        child.close()

    asyncio.run(scenario())


def test_backoff_doubles_up_to_its_cap_and_starts_over() -> None:
    backoff = Backoff(base_ms=100, cap_ms=1_000, draw=lambda: 1.0)
    assert [backoff.next_s() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert backoff.next_s() == 0.1


def test_only_errors_that_a_repeat_may_mend_are_repeated() -> None:
    answers: list[Any] = [StoreUnavailable("busy"), StoreUnavailable("busy"), 42]

    async def call() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    assert asyncio.run(persistently(call, "test", Backoff(base_ms=1, cap_ms=1))) == 42
    answers.append(StoreTooNew("newer"))
    with pytest.raises(StoreTooNew):
        asyncio.run(persistently(call, "test"))


@pytest.mark.parametrize(("dismissed", "outcome"), [(False, "worker_lost"), (True, "released")])
def test_tasks_that_a_dead_child_never_told_of_are_settled_too(dismissed: bool, outcome: str) -> None:
    async def scenario() -> None:
        store = open_store("sqlite://")
        ids = [IDS.task_id() for _ in range(6)]
        await store.enqueue([NewTask(task_id=task_id, type="t", queue="q", payload=b"{}") for task_id in ids])
        share = [QueueShare("q", 2)]
        told = await store.reserve(_asks("first", share))
        await store.reserve(_asks("second", share))  # committed, but the child died before it could tell
        child = ChildProcess(1, "w", _no_process(), _no_process())
        child.holds = {key: HeldTask.of(key, task) for key, task in enumerate(told.tasks)}
        child.asking = "second"
        child.dismissed = dismissed
        assert len(await settle_orphans(store, child, ["q"], 30_000, "was killed by SIGKILL")) == 4
        tasks = [task for task in await store.get(ids) if task is not None]
        assert [task.state for task in tasks] == [State.READY] * 6
        assert [[attempt.outcome for attempt in task.history] for task in tasks] == [[outcome]] * 4 + [[]] * 2
        await store.close()

    asyncio.run(scenario())


def _asks(claim_id: str, shares: list[QueueShare]) -> Reserve:
    return Reserve(claim_id=claim_id, worker_id="w", shares=shares, max_tasks=2, lease_ms=30_000)


def _no_process() -> Any:
    return SimpleNamespace()


@pytest.mark.parametrize("reference", ["", ":app", "tasks.py", "some/path:app"])
def test_what_cannot_be_a_module_is_explained(reference: str) -> None:
    with pytest.raises(BadApp, match="write it as module:app"):
        load_app(reference)


_FORKS_WITH_A_SIGNAL_ON_ITS_WAY = """
import os, signal, time
# Registered first, so it comes before the handlers of the child are taken back in the forked process.
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
from holdfast.worker.child.interrupt import leave_signals_to_supervisor
leave_signals_to_supervisor()
pid = os.fork()
if pid == 0:
    time.sleep(60)
    os._exit(0)
_, status = os.waitpid(pid, 0)
assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM, status
os.kill(os.getpid(), signal.SIGTERM)  # this process still leaves it to its supervisor
print("done")
"""


def test_a_forked_process_hears_a_signal_that_came_during_the_fork() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKS_WITH_A_SIGNAL_ON_ITS_WAY],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
