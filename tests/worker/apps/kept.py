"""Two apps on one store that keep their tasks for different times."""

from __future__ import annotations

from pathlib import Path

from holdfast import Holdfast, Retry


async def fails_until(path: str) -> str:
    """Succeeds once the file exists."""
    if not Path(path).exists():
        raise FileNotFoundError(path)
    return "done"


async def occurrences() -> str:
    return "fired"


def make_apps(url: str | None = None) -> tuple[Holdfast, Holdfast]:
    """The app that keeps nothing, and the one that keeps all."""
    once = Retry(max_attempts=1)
    short = Holdfast(url, queue="short", lease="2s", retry=once, result_ttl="0s", dead_letter_ttl="1s")
    long = Holdfast(url, queue="long", lease="2s", retry=once, result_ttl="30d", dead_letter_ttl="365d")
    for app in (short, long):
        app.task(name=f"{app._options.queue}.fails_until")(fails_until)
    long.every("1s", name="firing")(long.task(name="long.occurrences")(occurrences))
    return short, long


short, long = make_apps()
