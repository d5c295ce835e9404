"""Two versions of one app, as they run side by side in a deploy: the new one has one type and one parameter more."""

from __future__ import annotations

from holdfast import Holdfast, Retry


async def known(number: int) -> int:
    return number


async def added(number: int) -> int:
    return number


def resize(width: int) -> int:
    return width


def resize_later(width: int, height: int) -> int:
    return width * height


def make_old(url: str | None = None) -> Holdfast:
    """The app before the deployment."""
    made = Holdfast(url, lease="2s")
    made.task(name="known")(known)
    made.task(name="resize", retry=Retry(max_attempts=1))(resize)
    return made


def make_new(url: str | None = None) -> Holdfast:
    """The app after it."""
    made = Holdfast(url, lease="2s")
    made.task(name="known")(known)
    made.task(name="resize", retry=Retry(max_attempts=1))(resize_later)
    made.task(name="added")(added)
    return made


old, new = make_old(), make_new()
