"""What one search in a SQLite file may look at: a bounded number of tasks, and then its page ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.core.task import State
from holdfast.stores.contract import Query
from holdfast.stores.sqlite import queries
from holdfast.testing.kit.harness import SqliteHarness
from holdfast.testing.kit.kit import Kit, give_up

DEAD = frozenset({State.DEAD_LETTERED})


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "STEP_TASKS", 10)
    monkeypatch.setattr(queries, "STEPS", 3)
    monkeypatch.setattr(queries, "FEW_TASKS", 20)


def with_kit(tmp_path: Path, check: Callable[[Kit], Awaitable[None]]) -> None:
    async def run() -> None:
        harness = SqliteHarness(tmp_path)
        kit = Kit(harness, await harness.open())
        try:
            await check(kit)
        finally:
            await kit.close()

    asyncio.run(run())


async def _walk(kit: Kit, **fields: object) -> tuple[list[str], int]:
    """All that a search finds, and in how many pages."""
    found: list[str] = []
    cursor: str | None = None
    for pages in range(1, 100):
        page = await kit.store.find(Query(**{"limit": 7, "cursor": cursor, **fields}))  # type: ignore[arg-type]
        found += [task.task_id for task in page.tasks]
        cursor = page.cursor
        if cursor is None:
            return found, pages
    raise AssertionError("the pages do not end")


def test_a_search_that_finds_nothing_ends_its_page(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        await kit.enqueue(95)
        page = await kit.store.find(Query(type="nowhere"))
        assert page.tasks == []
        assert page.cursor is not None
        assert await _walk(kit, type="nowhere") == ([], 4)

    with_kit(tmp_path, check)


def test_what_is_rare_is_found_behind_many_others(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        rare = await kit.enqueue(3, type="rare")
        others = await kit.enqueue(95)
        rare += await kit.enqueue(3, type="rare")
        found, _ = await _walk(kit, type="rare")
        assert found == rare[::-1]
        assert (await _walk(kit, queue="default"))[0] == [*rare[:3], *others, *rare[3:]][::-1]
        assert (await _walk(kit, states=frozenset({State.READY}), type="rare", limit=1))[0] == rare[::-1]
        await kit.store.apply([give_up(task) for task in await kit.reserve(1, types=frozenset({"rare"}))])
        page = await kit.store.find(Query(states=DEAD))
        assert ([task.task_id for task in page.tasks], page.cursor) == (rare[:1], None)

    with_kit(tmp_path, check)


def test_many_dead_letters_are_not_all_read_for_one_page(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        dead = await kit.enqueue(90)
        await kit.store.apply([give_up(task) for task in await kit.reserve(90)])
        page = await kit.store.find(Query(states=DEAD, worker_id="nobody"))
        assert page.tasks == []
        assert page.cursor is not None
        assert (await _walk(kit, states=DEAD))[0] == dead[::-1]

    with_kit(tmp_path, check)
