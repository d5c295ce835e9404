"""Heartbeats on a scripted store: what is sent to it, and what its answers mean for the children."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from holdfast.core.task import Extension, Hold
from holdfast.stores.contract import WorkerOrders, WorkerRecord
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock
from holdfast.worker.protocol import CancelRequested, Extended, Held, HeldTask, Lost, ProgressReport
from holdfast.worker.supervisor.heartbeat import Heartbeat
from tests.worker.rig import IDS
from tests.worker.supervisor.fakes import FakeProcess, pool_of

#: Long enough that no test waits for a heartbeat by the clock of the machine.
LEASE_MS = 600_000


class ScriptedStore(PassingStore):
    """Answers `extend` as the test says, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(open_store("sqlite://"))
        self.extended: list[list[Hold]] = []
        self.answers: dict[str, Extension] = {}
        self.during_extend: Callable[[], None] = lambda: None

    async def extend(self, holds: Sequence[Hold], lease_ms: int, *, check_only: bool = False) -> list[Extension]:
        assert lease_ms == LEASE_MS
        self.extended.append(list(holds))
        self.during_extend()
        return [self.answers.get(hold.task_id, Extension(held=True)) for hold in holds]

    async def announce(self, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
        return None


class Stage:
    """A heartbeat for one child with two claims."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.clock.advance(1_000_000)
        self.store = ScriptedStore()
        self.child = FakeProcess()
        self.tasks = [HeldTask(key, IDS.task_id(), f"1.1.{key}", 1) for key in (1, 2)]
        self.child.say(Held(7, list(self.tasks), running=2))
        pool = pool_of(self.clock, self.child)
        self.heartbeat = Heartbeat(self.store, LEASE_MS, self.clock, pool, lambda: pool.record((), ()))

    def ids(self, call: int) -> set[str]:
        """The tasks of this call of `extend`."""
        return {hold.task_id for hold in self.store.extended[call]}

    def report(self, progress: ProgressReport) -> None:
        """The child sends progress, and the pool's event reaches the heartbeat."""
        self.child.say(progress)
        self.heartbeat.nudge()

    async def until_extended(self, calls: int) -> None:
        """Waits until the store was asked this often."""
        await until(lambda: len(self.store.extended) == calls)


def on_stage(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    async def play() -> None:
        stage = Stage()
        beating = asyncio.create_task(stage.heartbeat.run())
        try:
            async with asyncio.timeout(20):
                await scenario(stage)
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            await stage.store.close()

    asyncio.run(play())


async def turns() -> None:
    """Lets everything run that can run now."""
    for _ in range(20):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


def test_a_renewed_lease_counts_from_the_sending_however_late_the_reply() -> None:
    async def scenario(stage: Stage) -> None:
        sent_at_ms = stage.clock.monotonic_ms()
        stage.store.during_extend = lambda: stage.clock.advance(2 * LEASE_MS)
        await until(lambda: stage.child.sent)
        assert stage.child.sent[0] == Extended(7, sent_at_ms, 0)

    on_stage(scenario)


def test_a_renewal_counts_for_the_claims_that_were_reported_before_it() -> None:
    async def scenario(stage: Stage) -> None:
        late = HeldTask(3, IDS.task_id(), "1.1.3", 1)
        stage.store.during_extend = lambda: stage.child.say(Held(8, [late], running=3))
        await until(lambda: stage.child.sent)
        assert stage.child.sent[0] == Extended(7, 1_000_000, 0)
        assert late.task_id not in stage.ids(0)

    on_stage(scenario)


def test_the_child_is_told_of_lost_claims_and_they_are_not_renewed_again() -> None:
    async def scenario(stage: Stage) -> None:
        lost, other = stage.tasks
        stage.store.answers[lost.task_id] = Extension(held=False, reason="claimed by another worker")
        await until(lambda: len(stage.child.sent) == 2)
        assert stage.child.sent[0] == Lost([lost.key], "claimed by another worker")
        assert list(stage.child.holds) == [other.key]
        await turns()
        stage.clock.advance(LEASE_MS)
        stage.heartbeat.nudge()
        await stage.until_extended(2)
        assert stage.ids(1) == {other.task_id}

    on_stage(scenario)


def test_a_cancellation_is_passed_on_once() -> None:
    async def scenario(stage: Stage) -> None:
        task = stage.tasks[0]
        stage.store.answers[task.task_id] = Extension(held=True, cancel_requested=True)
        for calls in (1, 2):
            await stage.until_extended(calls)
            await turns()
            stage.clock.advance(LEASE_MS)
            stage.heartbeat.nudge()
        assert stage.child.sent.count(CancelRequested([task.key])) == 1

    on_stage(scenario)


def test_progress_that_arrives_during_a_renewal_is_written_with_the_next_one() -> None:
    async def scenario(stage: Stage) -> None:
        task = stage.tasks[0]
        await stage.until_extended(1)
        await turns()
        stage.report(ProgressReport({task.key: b"1 %"}))
        stage.store.during_extend = lambda: stage.report(ProgressReport({task.key: b"2 %"}))
        await stage.until_extended(2)
        stage.store.during_extend = lambda: None
        await stage.until_extended(3)
        assert [[hold.progress for hold in call] for call in stage.store.extended[1:]] == [[b"1 %"], [b"2 %"]]
        await turns()
        assert not stage.child.progress

    on_stage(scenario)


def test_claims_are_renewed_three_times_a_lease() -> None:
    async def scenario(stage: Stage) -> None:
        for beat in range(1, 4):
            await stage.until_extended(beat)
            await turns()
            stage.clock.advance(round(0.29 * LEASE_MS))
            stage.heartbeat.nudge()
            await turns()
            assert len(stage.store.extended) == beat, "renewed too soon"
            stage.clock.advance(round(0.08 * LEASE_MS))  # a third of the lease and its jitter of 10 %
            stage.heartbeat.nudge()
            await turns()
            assert stage.ids(beat) == {task.task_id for task in stage.tasks}

    on_stage(scenario)
