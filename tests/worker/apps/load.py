"""An app for tests of order: its tasks do next to nothing, each for as long as it is told."""

from __future__ import annotations

import asyncio

from holdfast import Holdfast


async def work(seconds: float) -> None:
    await asyncio.sleep(seconds)


def make_app(url: str | None = None) -> Holdfast:
    """The app on this store, or on that of HOLDFAST_URL."""
    made = Holdfast(url, lease="5s")
    made.task(name="work")(work)
    return made


app = make_app()
