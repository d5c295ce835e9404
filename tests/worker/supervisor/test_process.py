"""Hard limits: who is killed for what, and what becomes of the tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.clock import SystemClock
from holdfast.core.fairness import QueueShare
from holdfast.core.retry import RunPolicy
from holdfast.core.task import NewTask, State, Task
from holdfast.stores.contract import Reserve, Store
from holdfast.stores.open import open_store
from holdfast.worker.protocol import Ended, FromChild, Held, HeldTask
from holdfast.worker.supervisor import process as process_module
from holdfast.worker.supervisor.claims import settle_orphans
from holdfast.worker.supervisor.process import HardLimits, KillReason
from tests.worker.rig import IDS
from tests.worker.supervisor.fakes import FakeProcess


def held(key: int, hard_timeout_ms: int | None) -> HeldTask:
    policy = None if hard_timeout_ms is None else RunPolicy(hard_timeout_ms=hard_timeout_ms)
    return HeldTask(key, f"task-{key}", f"1.1.{key}", 1, policy)


def watched(child: FakeProcess, limits: HardLimits, *tasks: HeldTask) -> None:
    child.say(Held(1, list(tasks), running=len(tasks)))
    limits.watch(child, tasks)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def with_children(
    scenario: Callable[[HardLimits, FakeProcess, FakeProcess], Awaitable[None]], *, alone: bool = False
) -> None:
    async def run() -> None:
        children = [FakeProcess(alone=alone), FakeProcess(alone=alone)]
        limits = HardLimits(SystemClock(), lambda: children)
        await scenario(limits, *children)
        limits.stop()

    asyncio.run(run())


def test_only_the_child_of_the_task_over_its_limit_is_killed() -> None:
    async def scenario(limits: HardLimits, slow: FakeProcess, other: FakeProcess) -> None:
        watched(slow, limits, held(1, 50), held(2, 60_000), held(3, None))
        watched(other, limits, held(1, 60_000), held(2, None))
        await until(lambda: slow.killed)
        assert slow.kill_reasons == {1: KillReason.HARD_LIMIT}
        assert slow.dismissed  # the others are released
        assert not other.killed

    with_children(scenario)


def test_all_tasks_over_their_limits_are_kill_reasons() -> None:
    async def scenario(limits: HardLimits, child: FakeProcess, _: FakeProcess) -> None:
        watched(child, limits, *(held(key, 30) for key in range(1, 6)))
        await until(lambda: child.killed)
        assert child.kill_reasons == dict.fromkeys(range(1, 6), KillReason.HARD_LIMIT)

    with_children(scenario)


def test_a_sooner_deadline_that_comes_later_is_met() -> None:
    async def scenario(limits: HardLimits, late: FakeProcess, soon: FakeProcess) -> None:
        watched(late, limits, held(1, 60_000))
        watched(soon, limits, held(1, 30))
        await until(lambda: soon.killed)
        assert not late.killed
        assert late.deadlines

    with_children(scenario)


@pytest.mark.parametrize("word", [Ended([1]), Held(2, drop=[1])])
def test_a_run_that_is_over_is_no_kill_reason_settled_or_not(word: FromChild) -> None:
    async def scenario(limits: HardLimits, child: FakeProcess, other: FakeProcess) -> None:
        watched(child, limits, held(1, 30))
        watched(other, limits, held(1, 60))
        child.say(word)
        await until(lambda: other.killed)
        assert not child.killed

    with_children(scenario)


def test_an_end_that_was_sent_before_the_kill_and_read_after_it_clears_the_task() -> None:
    async def scenario(limits: HardLimits, child: FakeProcess, _: FakeProcess) -> None:
        watched(child, limits, held(1, 30), held(2, 30))
        await until(lambda: child.killed)
        child.say(Ended([1]))
        assert child.kill_reasons == {2: KillReason.HARD_LIMIT}

    with_children(scenario)


def test_without_limits_there_is_no_timer() -> None:
    async def scenario(limits: HardLimits, child: FakeProcess, _: FakeProcess) -> None:
        watched(child, limits, held(1, None), held(2, None))
        assert limits._timer is None
        assert not child.deadlines

    with_children(scenario)


def test_a_cancelled_task_that_is_alone_has_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "CANCEL_GRACE_MS", 30)

    async def scenario(limits: HardLimits, child: FakeProcess, other: FakeProcess) -> None:
        for each in (child, other):
            watched(each, limits, held(1, None))
            each.cancelling.add(1)
            limits.limit_cancelled(each, [1])
        other.say(Ended([1]))
        await until(lambda: child.killed)
        assert child.kill_reasons == {1: KillReason.IGNORED_CANCEL}
        assert not other.killed

    with_children(scenario, alone=True)


def test_a_cancellation_does_not_lengthen_a_hard_limit() -> None:
    async def scenario(limits: HardLimits, child: FakeProcess, _: FakeProcess) -> None:
        watched(child, limits, held(1, 30), held(2, 60_000))
        limit_ms = child.deadlines[1]
        child.cancelling.update((1, 2))
        limits.limit_cancelled(child, [1, 2])
        assert child.deadlines[1] == limit_ms
        assert child.deadlines[2] < limit_ms + 60_000  # a later one is brought forward
        await until(lambda: child.killed)

    with_children(scenario, alone=True)


def test_among_others_a_cancelled_task_is_not_worth_a_kill() -> None:
    async def scenario(limits: HardLimits, child: FakeProcess, _: FakeProcess) -> None:
        watched(child, limits, held(1, None))
        limits.limit_cancelled(child, [1])
        assert not child.deadlines

    with_children(scenario)


# -- what is settled -----------------------------------------------------------------------------------------


async def claimed_tasks(store: Store, policy: RunPolicy) -> list[HeldTask]:
    tasks = [NewTask(task_id=IDS.task_id(), type="t", queue="q", payload=b"{}", policy=policy) for _ in range(3)]
    await store.enqueue(tasks)
    request = Reserve(claim_id="c", worker_id="w:1.1", shares=[QueueShare("q", 3)], max_tasks=3, lease_ms=30_000)
    return [HeldTask.of(key, task) for key, task in enumerate((await store.reserve(request)).tasks, 1)]


def settled(max_attempts: int, reason: KillReason) -> list[Task]:
    """Three claims of a child that was killed for the first one."""

    async def run() -> list[Task]:
        store = open_store("sqlite://")
        tasks = await claimed_tasks(store, RunPolicy(max_attempts=max_attempts, hard_timeout_ms=1_000))
        child = FakeProcess()
        child.say(Held(1, tasks))
        child.kill_because_of({1: reason})
        assert len(await settle_orphans(store, child, ["q"], 30_000, "was killed by SIGKILL")) == 3
        found = [task for task in await store.get([task.task_id for task in tasks]) if task is not None]
        await store.close()
        return found

    return asyncio.run(run())


def test_the_task_over_its_limit_is_timed_out_and_its_neighbours_lose_no_attempt() -> None:
    killed, *others = settled(5, KillReason.HARD_LIMIT)
    assert (killed.state, killed.attempt, killed.history[0].outcome) == (State.RETRY_PENDING, 1, "timed_out")
    error: Any = killed.history[0].error
    assert error.type == "holdfast.errors.TimedOut"
    assert error.message == "ran longer than its hard limit of 1s; its process was killed"
    for other in others:
        assert (other.state, other.attempt, other.history[0].outcome) == (State.READY, 0, "released")


def test_the_task_over_its_limit_without_attempts_becomes_a_dead_letter() -> None:
    killed = settled(1, KillReason.HARD_LIMIT)[0]
    assert (killed.state, killed.reason) == (State.DEAD_LETTERED, "timed_out")


def test_a_task_that_went_on_after_its_cancellation_is_cancelled() -> None:
    killed, *others = settled(5, KillReason.IGNORED_CANCEL)
    assert (killed.state, killed.history[0].outcome) == (State.CANCELLED, "cancelled")
    assert {other.state for other in others} == {State.READY}


def test_what_a_reserve_claims_after_the_death_of_its_child_is_found_by_a_second_look() -> None:
    async def run() -> None:
        store = open_store("sqlite://")
        task = NewTask(task_id=IDS.task_id(), type="t", queue="q", payload=b"{}")
        await store.enqueue([task])
        child = FakeProcess()
        child.say(Held(1, asking="late"))
        assert await settle_orphans(store, child, ["q"], 30_000, "was killed") == []
        share = [QueueShare("q", 1)]
        await store.reserve(Reserve(claim_id="late", worker_id="w:1.1", shares=share, max_tasks=1, lease_ms=30_000))
        assert len(await settle_orphans(store, child, ["q"], 30_000, "was killed")) == 1
        assert await settle_orphans(store, child, ["q"], 30_000, "was killed") == []
        (found,) = await store.get([task.task_id])
        assert found is not None
        assert (found.state, [attempt.outcome for attempt in found.history]) == (State.READY, ["worker_lost"])
        await store.close()

    asyncio.run(run())
