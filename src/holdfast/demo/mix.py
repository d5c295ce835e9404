"""What the demo submits: a first load, then a trickle."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.demo import tasks
from holdfast.producer.enqueue import Prepared

Call = Prepared[Any]
_PEOPLE = ("Ada", "Grace", "Edsger", "Barbara", "Tony", "Leslie")


def first_load(chance: random.Random) -> Iterator[Call]:
    """Some of everything."""
    yield from (tasks.add.prepare(n, n) for n in range(300))
    yield from (_resize(chance) for _ in range(60))
    yield from (_urgent(chance) for _ in range(20))
    yield from (tasks.render.prepare(f"scene-{n}", seconds=chance.uniform(2, 6)) for n in range(6))
    yield from (_fetch(chance) for _ in range(40))
    yield from (_charge(chance) for _ in range(6))
    yield from (_remind(chance) for _ in range(15))
    yield from (_poll(chance) for _ in range(3))
    yield from (tasks.newsletter.prepare(name) for name in (*_PEOPLE, "former Ada"))


def doomed(chance: random.Random) -> list[Call]:
    """Two that the demo cancels: one that waits for its time, one that will be running."""
    later = tasks.remind.using(delay="1h").prepare(chance.choice(_PEOPLE))
    running = tasks.render.using(priority=50).prepare("director's cut", frames=600, seconds=600.0)
    return [later, running]


def trickle(chance: random.Random) -> list[Call]:
    """What comes in during a quarter of a second."""
    makers: list[tuple[Callable[[random.Random], Call], float]] = [
        (_add, 1.0), (_add, 1.0), (_add, 0.5), (_resize, 0.8), (_urgent, 0.2), (_fetch, 0.6),
        (_render, 0.12), (_charge, 0.12), (_remind, 0.3), (_poll, 0.06),
    ]  # fmt: skip
    return [make(chance) for make, likelihood in makers if chance.random() < likelihood]


def _add(chance: random.Random) -> Call:
    return tasks.add.prepare(chance.randrange(1000), chance.randrange(1000))


def _resize(chance: random.Random) -> Call:
    return tasks.resize.prepare(f"cat-{chance.randrange(1000)}.png", width=chance.choice((200, 400, 800)))


def _urgent(chance: random.Random) -> Call:
    return tasks.resize.using(priority=10).prepare(f"front-page-{chance.randrange(100)}.png")


def _render(chance: random.Random) -> Call:
    return tasks.render.prepare(f"scene-{chance.randrange(100)}", seconds=chance.uniform(2, 6))


def _fetch(chance: random.Random) -> Call:
    return tasks.fetch.prepare(f"example.org/{chance.randrange(10_000)}")


def _charge(chance: random.Random) -> Call:
    return tasks.charge.prepare(chance.choice(("4242", "5454", "not a number")), chance.randrange(100, 10_000))


def _remind(chance: random.Random) -> Call:
    return tasks.remind.using(delay=chance.uniform(1, 8)).prepare(chance.choice(_PEOPLE))


def _poll(chance: random.Random) -> Call:
    return tasks.poll.prepare(f"export-{chance.randrange(100)}", time.time() + chance.uniform(1, 4))
