"""Bells of a database: as many as anybody likes, with a few descriptors."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from holdfast.stores.sqlite import bells
from holdfast.stores.sqlite.bells import Bells


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted there")
def test_names_that_were_waited_for_once_do_not_use_up_the_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bells, "_MAX_OPEN", 10)
    bell = Bells(str(tmp_path / "tasks.db"))

    async def scenario() -> None:
        before = _descriptors()
        for n in range(30):
            await bell.wait([f"{n}-{m}" for m in range(4)], 1)
        assert _descriptors() <= before + 10

    asyncio.run(scenario())
    bell.close()


@pytest.mark.parametrize("ringing", ["this", "other"])
def test_one_who_waits_hears_however_many_others_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ringing: str
) -> None:
    monkeypatch.setattr(bells, "_MAX_OPEN", 10)
    this, other = Bells(str(tmp_path / "tasks.db")), Bells(str(tmp_path / "tasks.db"))

    async def scenario() -> None:
        waiting = asyncio.create_task(this.wait(["q"], 10_000))
        await asyncio.sleep(0)
        await this.wait([str(n) for n in range(30)], 1)
        {"this": this, "other": other}[ringing].ring(["q"])
        assert await waiting

    asyncio.run(scenario())
    this.close()
    other.close()


def test_without_descriptors_rings_are_lost_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    bell = Bells(str(tmp_path / "tasks.db"))
    monkeypatch.setattr(os, "open", none_left)
    bell.ring(["q"])  # as after a commit, which has to be told of
    assert asyncio.run(bell.wait(["q"], 1)) is False
    bell.close()
