"""Maintenance of a SQLite file where the kit's cases are too small to reach."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.core.retry import RunPolicy
from holdfast.stores.sqlite import maintenance
from holdfast.testing.kit.harness import SqliteHarness
from holdfast.testing.kit.kit import Kit


def test_unstarted_tasks_are_found_behind_pages_of_begun_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "MAX_BATCH", 3)

    async def scenario() -> None:
        harness = SqliteHarness(tmp_path)
        kit = Kit(harness, await harness.open())
        await kit.enqueue(10, policy=RunPolicy(expires_ms=1_000))
        assert len(await kit.reserve(10)) == 10
        late = await kit.enqueue(2, policy=RunPolicy(expires_ms=2_000))
        kit.clock.advance(2_000)
        assert await kit.unstarted(2) == late
        assert await kit.unstarted(2) == late
        await kit.close()

    asyncio.run(scenario())
