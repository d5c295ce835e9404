"""Blocks in threads that are interrupted: each is committed or rolled back, and none is left open."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter

import pytest

from holdfast import current
from holdfast.core.lifecycle import Event
from holdfast.core.task import State
from holdfast.worker.child.run import Ending
from tests.postgres.transactions.completion.desk import WRITE, desk, succeeded
from tests.support import eventually

OPEN = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND backend_xid IS NOT NULL"


def writes() -> None:
    with current().transaction() as conn:
        conn.execute(WRITE, (current().task_id, current().task_id))
        conn.execute("SELECT 1")
    current().progress(1)


def test_wherever_it_is_interrupted_the_block_is_whole(database_url: str) -> None:
    async def scenario() -> Counter[str]:
        draw = random.Random(7)
        seen: Counter[str] = Counter()
        loop = asyncio.get_running_loop()
        async with desk(database_url) as it:
            for _ in range(150):  # far more than there are connections, all of which are needed again
                run = await it.run_of(writes)
                loop.call_later(draw.random() * 0.004, run.end, draw.choice([Ending.TIMED_OUT, Ending.CANCELLED]))
                async with asyncio.timeout(30):
                    change = await it.perform(run)
                task = await it.task(run)
                written = run.task.task_id in it.notes()
                assert written is (task.state is State.SUCCEEDED)
                assert written is (change is None)
                assert change is None or change.event in {Event.RETRY, Event.STOP}
                seen["committed" if written else "rolled back"] += 1
            await asyncio.to_thread(eventually, lambda: not it.query(OPEN))
            assert succeeded(*await it.done(writes))
        return seen

    seen = asyncio.run(scenario())
    assert seen["rolled back"] > 10, seen


@pytest.mark.parametrize("statement", ["SELECT pg_sleep(60)", ""])
def test_an_interruption_inside_the_block_rolls_back(database_url: str, statement: str) -> None:
    inside = threading.Event()

    def rests() -> None:
        with current().transaction() as conn:
            conn.execute(WRITE, (current().task_id, "never"))
            inside.set()
            if statement:
                conn.execute(statement.encode())
            while True:
                pass

    async def scenario() -> None:
        async with desk(database_url) as it:
            run = await it.run_of(rests)
            performing = asyncio.create_task(it.perform(run))
            await asyncio.to_thread(inside.wait)
            run.end(Ending.TIMED_OUT)
            change = await asyncio.wait_for(performing, 20)
            assert change is not None
            assert change.outcome == "timed_out"
            await asyncio.to_thread(eventually, lambda: not it.query(OPEN))
            assert it.notes() == []
            assert succeeded(*await it.done(writes))

    asyncio.run(scenario())
