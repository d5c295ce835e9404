"""Blocks that are used wrongly, and what comes after their commit."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from holdfast import Snooze, current
from holdfast.core.task import State
from holdfast.errors import UsageError
from tests.postgres.transactions.completion.desk import WRITE, desk, succeeded, writes, writes_in_thread


async def commits() -> None:
    async with current().transaction() as conn:
        await conn.commit()


async def rolls_back() -> None:
    async with current().transaction() as conn:
        await conn.rollback()


def commits_in_thread() -> None:
    with current().transaction() as conn:
        conn.commit()


def rolls_back_in_thread() -> None:
    with current().transaction() as conn:
        conn.rollback()


async def ends_by_hand() -> None:
    async with current().transaction() as conn:
        await conn.execute("ROLLBACK")


async def ends_and_begins_by_hand() -> None:
    async with current().transaction() as conn:
        await conn.execute("COMMIT")
        await conn.execute("BEGIN")
        await conn.execute(WRITE, (current().task_id, "never"))


async def nests() -> None:
    async with current().transaction(), current().transaction():
        pass


async def blocks_the_loop() -> None:
    with current().transaction():
        pass


async def result_outside() -> None:
    current().set_result(1)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (commits, "commit() has no place inside the block"),
        (rolls_back, "rollback() has no place inside the block"),
        (commits_in_thread, "commit() has no place inside the block"),
        (rolls_back_in_thread, "rollback() has no place inside the block"),
        (ends_by_hand, "leave COMMIT and ROLLBACK to the block"),
        (ends_and_begins_by_hand, "leave COMMIT and ROLLBACK to the block"),
        (nests, "a block of this run is still open"),
        (blocks_the_loop, "write: async with current().transaction() as conn:"),
        (result_outside, "set_result() is for the inside of a transaction() block"),
    ],
)
def test_wrong_use_is_told_in_one_line_and_commits_nothing(database_url: str, function: Any, words: str) -> None:
    async def scenario() -> None:
        async with desk(database_url) as it:
            task, change = await it.done(function)
            assert task.state is State.CLAIMED
            assert change is not None
            assert change.error is not None
            assert change.error.type.endswith("UsageError")
            assert words in change.error.message
            assert "\n" not in change.error.message
            assert it.notes() == []

    asyncio.run(scenario())


def test_a_second_block_after_the_commit_is_refused(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def twice() -> None:
        for note in ("kept", "never"):
            async with current().transaction() as conn:
                await conn.execute(WRITE, (current().task_id, note))

    async def scenario() -> None:
        async with desk(database_url) as it:
            assert succeeded(*await it.done(twice))
            assert it.notes() == ["kept"]

    asyncio.run(scenario())
    assert "a block of this run has finished the task already" in caplog.text


def test_a_block_that_was_rolled_back_may_be_tried_again(database_url: str) -> None:
    async def insists() -> None:
        for note in ("never", "kept"):
            try:
                async with current().transaction() as conn:
                    await conn.execute(WRITE, (current().task_id, note))
                    if note == "never":
                        raise ZeroDivisionError
            except ZeroDivisionError:
                continue

    async def scenario() -> None:
        async with desk(database_url) as it:
            assert succeeded(*await it.done(insists))
            assert it.notes() == ["kept"]

    asyncio.run(scenario())


def test_other_stores_refuse_in_one_line() -> None:
    async def scenario() -> None:
        from tests.worker.rig import Rig

        errors: list[str] = []

        async def work() -> None:
            try:
                async with current().transaction():
                    pass
            except UsageError as error:
                errors.append(str(error))

        rig = Rig(work)
        await rig.enqueue(1)
        await rig.drain()
        (line,) = errors
        assert "PostgreSQL" in line
        assert "once()" in line
        assert "sqlite" in line
        assert "\n" not in line

    asyncio.run(scenario())


# -- after the commit -----------------------------------------------------------------------------------------


async def raises_afterwards() -> None:
    await writes()
    raise ValueError("too late")


async def snoozes_afterwards() -> Snooze:
    await writes()
    return Snooze("1h")


async def raises_snooze_afterwards() -> None:
    await writes()
    raise Snooze("1h")


async def returns_another() -> Any:
    await writes()
    return {"rows": 2}


async def returns_what_cannot_be_stored() -> Any:
    await writes()
    return object()


def raises_afterwards_in_thread() -> None:
    writes_in_thread()
    raise ValueError("too late")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (raises_afterwards, "ValueError: too late"),
        (raises_afterwards_in_thread, "ValueError: too late"),
        (snoozes_afterwards, "what came after that changes nothing: Snooze"),
        (raises_snooze_afterwards, "what came after that changes nothing: Snooze"),
        (returns_another, "what it returned after that is not stored"),
        (returns_what_cannot_be_stored, "what came after that changes nothing"),
    ],
)
def test_what_comes_after_the_commit_is_logged_and_changes_nothing(
    database_url: str, caplog: pytest.LogCaptureFixture, function: Any, words: str
) -> None:
    async def scenario() -> None:
        async with desk(database_url) as it:
            task, change = await it.done(function)
            assert succeeded(task, change)
            assert msgspec.json.decode(task.result or b"") == {"rows": 1}
            assert task.task_id in caplog.text

    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        asyncio.run(scenario())
    assert words in caplog.text


def test_the_same_value_or_none_may_be_returned(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def returns_the_same() -> Any:
        await writes()
        assert not current().claim_lost
        return {"rows": 1}

    async def scenario() -> None:
        async with desk(database_url) as it:
            for function in (returns_the_same, writes):
                assert succeeded(*await it.done(function))

    asyncio.run(scenario())
    assert "after that" not in caplog.text
