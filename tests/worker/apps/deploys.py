"""Two versions of one app, as they run side by side during a deployment: the new one knows one task type more."""

from __future__ import annotations

from holdfast import Holdfast


async def known(number: int) -> int:
    return number


async def added(number: int) -> int:
    return number


def make_old(url: str | None = None) -> Holdfast:
    """The app before the deployment."""
    made = Holdfast(url, lease="2s")
    made.task(name="known")(known)
    return made


def make_new(url: str | None = None) -> Holdfast:
    """The app after it."""
    made = make_old(url)
    made.task(name="added")(added)
    return made


old, new = make_old(), make_new()
