"""Slots: which claims a renewal counts for, and what is released when a child leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.clock import SystemClock
from holdfast.core.ids import partition_of
from holdfast.stores.open import open_store
from holdfast.worker.child.run import Ending, Run, RunContext
from holdfast.worker.child.slots import Slots
from tests.worker.rig import claimed, task_type


async def nothing() -> None:
    pass


def with_slots(scenario: Callable[[Slots, RunContext], None]) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        store = open_store("sqlite://")
        scenario(Slots(loop, 10), RunContext(store, loop))
        await store.close()

    asyncio.run(run())


def add(slots: Slots, context: RunContext, key: int, *, told: int = 1, lease_ends_ms: int = 1_000) -> Run:
    run = slots.running[key] = Run(key, claimed(), task_type(nothing), told, lease_ends_ms, context)
    return run


def test_a_renewal_counts_for_the_claims_that_were_reported_before_it_was_sent() -> None:
    def scenario(slots: Slots, context: RunContext) -> None:
        before, after = add(slots, context, 1, told=4), add(slots, context, 2, told=5)
        context.extended[partition_of(before.task.task_id)] = 4, 9_000
        assert (before.deadline_ms, after.deadline_ms) == (9_000, 1_000)
        assert slots.expired(1_000) == [2]
        context.extended[partition_of(before.task.task_id)] = 5, 12_000
        assert slots.expired(1_000) == []

    with_slots(scenario)


def test_a_renewal_does_not_count_for_a_lost_claim() -> None:
    def scenario(slots: Slots, context: RunContext) -> None:
        run = add(slots, context, 1)
        run.lost = True
        context.extended[partition_of(run.task.task_id)] = 1, 9_000
        assert run.deadline_ms == 1_000

    with_slots(scenario)


def test_runs_whose_claims_are_lost_are_not_released_when_the_child_leaves() -> None:
    def scenario(slots: Slots, context: RunContext) -> None:
        until_ms = SystemClock().monotonic_ms() + 60_000
        ours, noted, ended = (add(slots, context, key, lease_ends_ms=until_ms) for key in (1, 2, 3))
        noted.lost = True
        ended.end(Ending.LOST)
        slots.abandon()
        assert slots.left == [ours.task]
        assert slots.idle

    with_slots(scenario)
