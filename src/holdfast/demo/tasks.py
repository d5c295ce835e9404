"""The task types of the demo, as a user would write them; the worker imports this module."""

from __future__ import annotations

import asyncio
import random
import time

from holdfast import Cancel, Holdfast, Retry, Snooze, current

#: Short waits, so that retries and dead letters are seen within seconds; real work waits longer.
_IMPATIENT = Retry(max_attempts=4, base="300ms", cap="2s")

_chance = random.SystemRandom()

app = Holdfast(lease="5s", retry=_IMPATIENT)


@app.task(name="add", queue="fast")
async def add(a: int, b: int) -> int:
    """Fast: nothing to wait for."""
    return a + b


@app.task(name="resize", queue="fast")
def resize(url: str, width: int = 800) -> str:
    """Fast, but in a thread, as blocking code would be."""
    time.sleep(_chance.uniform(0.001, 0.02))
    return f"{url.rpartition('.')[0]}-{width}.jpg"


@app.task(name="render", queue="slow")
async def render(scene: str, frames: int = 20, seconds: float = 4.0) -> str:
    """Slow, with progress."""
    for frame in range(frames):
        current().progress(frame, frames, note=scene)
        await asyncio.sleep(seconds / frames)
    return f"{scene}.mp4"


@app.task(name="fetch", queue="flaky")
async def fetch(url: str) -> str:
    """Fails now and then, and succeeds when it is tried again."""
    await asyncio.sleep(_chance.uniform(0.01, 0.1))
    if _chance.random() < 0.45:
        raise ConnectionError(f"{url} did not answer")
    return f"{len(url)} bytes"


@app.task(name="charge", queue="flaky", retry=Retry(max_attempts=3, base="300ms", cap="1s", give_up_on=(ValueError,)))
def charge(card: str, cents: int) -> str:
    """Always fails: at once for a bad card, after three attempts for a bank that is closed."""
    if not card.isdecimal():
        raise ValueError(f"{card!r} is not a card number")
    raise TimeoutError(f"the bank did not take {cents} cents")


@app.task(name="remind", queue="delayed")
async def remind(whom: str) -> str:
    """Runs when its time has come, not before."""
    return f"reminded {whom}"


@app.task(name="poll", queue="delayed")
async def poll(job: str, ready_at: float) -> str | Snooze:
    """Not ready yet: asks to be run again a little later, which uses up no attempt."""
    return f"{job} is ready" if time.time() >= ready_at else Snooze("1s")


@app.task(name="newsletter", queue="slow")
async def newsletter(subscriber: str) -> str | Cancel:
    """Ends itself as cancelled when there is nothing to do any more."""
    await asyncio.sleep(0.05)
    return Cancel("unsubscribed") if subscriber.startswith("former") else f"sent to {subscriber}"
