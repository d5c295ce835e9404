"""In an aged queue nothing starves, and in a strict one priority is all that counts, however much comes in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.core.priority import step_of
from holdfast.stores import documents
from holdfast.testing.kit.kit import Kit
from tests.stores.harnesses import HARNESSES

STEP_MS, HIGH, TICK_MS = 1_000, 5, 500
#: Later than this, urgent tasks no longer overtake the patient one.
OVERTAKEN_MS = HIGH * STEP_MS


def on(harness: str, directory: Path, scenario: Callable[[Kit], Awaitable[None]]) -> None:
    async def run() -> None:
        made = HARNESSES[harness](directory)
        kit = Kit(made, await made.open())
        try:
            await kit.begin()
            await scenario(kit)
        finally:
            await kit.close()
            await made.destroy()

    asyncio.run(run())


async def flood(kit: Kit, occurrences: int) -> tuple[list[str], list[str], str]:
    """Two urgent tasks come for each one that is taken; the urgent ones in time, those taken, and the patient one."""
    [patient] = await kit.enqueue()
    in_time, taken = list[str](), list[str]()
    for occurrence in range(occurrences):
        urgent = await kit.enqueue(2, priority=HIGH)
        if occurrence * TICK_MS < OVERTAKEN_MS:
            in_time += urgent
        taken.append((await kit.reserve_one()).task_id)
        kit.clock.advance(TICK_MS)
    return in_time, taken, patient


@pytest.mark.parametrize("harness", ["sqlite-file", "redis", "postgres"])
def test_in_an_aged_queue_a_task_is_overtaken_only_as_long_as_priority_is_worth(harness: str, tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await documents.set_step(kit.store, "default", step_of("aged", STEP_MS / 1000))
        in_time, taken, patient = await flood(kit, occurrences=30)
        assert taken[: len(in_time)] == in_time
        assert taken[len(in_time)] == patient

    on(harness, tmp_path, scenario)


@pytest.mark.parametrize("harness", ["sqlite-file", "redis", "postgres"])
def test_in_a_strict_queue_it_waits_as_long_as_urgent_ones_come(harness: str, tmp_path: Path) -> None:
    async def scenario(kit: Kit) -> None:
        await documents.set_step(kit.store, "default", step_of("strict"))
        _, taken, patient = await flood(kit, occurrences=30)
        assert patient not in taken
        assert len(taken) == 30
        await documents.set_step(kit.store, "default", step_of("aged"))  # which lets it go again
        kit.clock.advance(HIGH * step_of("aged"))
        newcomers = await kit.enqueue(2, priority=HIGH)
        left = [task.task_id for task in await kit.reserve(100)]
        assert left[-3:] == [patient, *newcomers]

    on(harness, tmp_path, scenario)
