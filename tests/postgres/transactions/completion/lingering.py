"""The app of the worker's tests: blocks that stay open, and code behind them."""

from __future__ import annotations

import asyncio

from holdfast import Holdfast, current
from tests.postgres.transactions.completion.desk import WRITE


async def goes_on(seconds: float) -> None:
    """Works for so long after the commit."""
    async with current().transaction() as conn:
        await conn.execute(WRITE, (current().task_id, "committed"))
    await asyncio.sleep(seconds)
    current().log.warning("went on to the end")


async def stays() -> None:
    """Never leaves its block."""
    async with current().transaction() as conn:
        await conn.execute(WRITE, (current().task_id, "never"))
        await asyncio.Event().wait()


def stays_in_thread() -> None:
    """Never leaves its block, in a statement."""
    with current().transaction() as conn:
        conn.execute(WRITE, (current().task_id, "never"))
        conn.execute("SELECT pg_sleep(600)")


def make_app(url: str | None = None) -> Holdfast:
    """The app on this store."""
    app = Holdfast(url, lease="1s")
    for function in (goes_on, stays, stays_in_thread):
        app.task(name=function.__name__)(function)
    return app


app = make_app()
