"""Many task types in one queue: handed out in their order, and those that others make up cost a worker nothing."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.task import NewTask
from holdfast.stores.sqlite import claims
from holdfast.stores.sqlite.transaction import Transaction
from holdfast.testing.kit.harness import SqliteHarness
from holdfast.testing.kit.kit import Kit

MADE_UP = 3_000
#: Of statements about types, and of ranges in a claim; without a limit there would be one for each type.
FEW = 300


class Work:
    """What reserves have done: statements executed, and the index ranges that a claim has merged."""

    def __init__(self) -> None:
        self.statements = 0
        self.most_ranges = 0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    done, value, statement = Work(), Transaction.value, claims._claim_statement

    def counted(self: Transaction, name: str, bindings: Any = None) -> Any:
        done.statements += 1
        return value(self, name, bindings)

    def noted(types: int) -> str:
        done.most_ranges = max(done.most_ranges, types)
        return statement(types)

    monkeypatch.setattr(Transaction, "value", counted)
    monkeypatch.setattr(claims, "_claim_statement", noted)
    return done


async def _enqueue(kit: Kit, names: list[str]) -> list[NewTask]:
    tasks = [kit.new_task(type=name) for name in names]
    for start in range(0, len(tasks), 1_000):
        await kit.store.enqueue(tasks[start : start + 1_000])
    return tasks


def test_made_up_types_cost_other_calls_nothing(tmp_path: Path, work: Work) -> None:
    async def scenario() -> None:
        harness = SqliteHarness(tmp_path)
        kit = Kit(harness, await harness.open())
        await _enqueue(kit, [f"made-up-{number:05}" for number in range(MADE_UP)])
        await _enqueue(kit, ["known", "zoo"])
        work.statements = work.most_ranges = 0
        known = frozenset({"known", "unknown", "a", "made-up", "zoo", "zz"})
        assert [task.type for task in await kit.reserve(10, types=known)] == ["known", "zoo"]
        assert await kit.reserve(10, types=frozenset({"unknown"})) == []
        assert len(await kit.reserve(10)) == 10
        assert work.statements < FEW
        assert work.most_ranges < FEW
        await kit.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("at_once", [1, 20, 150])
def test_many_types_are_handed_out_in_their_order(tmp_path: Path, at_once: int) -> None:
    async def scenario() -> None:
        harness, draw = SqliteHarness(tmp_path), random.Random(at_once)
        kit = Kit(harness, await harness.open())
        names = [f"type-{number}" for number in range(400)] * 2
        draw.shuffle(names)
        tasks: list[NewTask] = []
        for start in range(0, len(names), 50):
            tasks += await _enqueue(kit, names[start : start + 50])
            kit.clock.advance(1)
        ours = frozenset(f"type-{number}" for number in range(0, 400, 2))
        got = [await kit.reserve(at_once, types=ours) for _ in range(2)]
        order = [task.task_id for task in tasks if task.type in ours]
        assert [task.task_id for some in got for task in some] == order[: 2 * at_once]
        taken = {task.task_id for some in got for task in some}
        left = [task.task_id for task in tasks if task.task_id not in taken]
        assert [task.task_id for task in await kit.reserve(at_once)] == left[:at_once]
        await kit.close()

    asyncio.run(scenario())


def test_a_claim_from_a_queue_that_is_named_alone_sees_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        harness = SqliteHarness(tmp_path)
        kit = Kit(harness, await harness.open())
        await kit.store.enqueue([kit.new_task(type=f"type-{number}", queue="elsewhere") for number in range(200)])
        await _enqueue(kit, [f"type-{number}" for number in range(200)])
        assert {task.queue for task in await kit.reserve(300)} == {"default"}
        await kit.close()

    asyncio.run(scenario())
