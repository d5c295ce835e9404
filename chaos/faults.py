"""What a deployment is, and the faults that all kinds of servers can suffer.

A fault takes the key of the partition to strike and a source of chance; it returns when the servers are whole again,
and says what it did. A stress (chaos/stresses.py) brings tasks of its own and may strike anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.servers.proxy import LineFaults
from tests.support import eventually

from chaos.snapshot import Reading

if TYPE_CHECKING:
    from chaos.field import Field

Fault = Callable[[str, Random], str]
Stress = Callable[["Field"], str]
#: This many replies are lost each time that a line goes bad.
_LOST_REPLIES: Final = 200
_DROP_EVERY: Final = (3, 7, 20, 50)


@dataclass(frozen=True)
class Deployment:
    """Servers that run, how to reach them, and what can happen to them."""

    name: str
    url: str
    #: Reads its records at the end, past the store.
    read: Reading
    heal: Callable[[], Any]
    faults: Mapping[str, Fault]
    stresses: Mapping[str, Stress] = field(default_factory=dict)
    #: What workers call it by, if that is not the same.
    worker_url: str | None = None
    #: Lines of what is between the load and the store which tell of a bug.
    complaints: Callable[[], list[str]] = list
    #: The lease of its workers.
    lease: str = "3s"
    #: The slots of each of its workers.
    concurrency: int = 50
    #: How many orders the load sends in a second.
    per_second: int = 800
    #: For all processes of Holdfast.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Lets time pass until everything that waits for it is due.
    catch_up: Callable[[], None] = lambda: None
    #: Whether no other process may have the store open while producers fork: it would hide their faults.
    forks_alone: bool = False
    #: Whether nothing that it suffers cuts a worker off: no claim may be lost then.
    spares_claims: bool = False


def drops(
    strike: Callable[[LineFaults | None], None], dropped: Callable[[], int], every: Sequence[int] = _DROP_EVERY
) -> Fault:
    """Loses replies on lines that `strike` makes bad, until `dropped` says that there were enough."""

    def drop_replies(_key: str, random: Random) -> str:
        nth, before = random.choice(every), dropped()
        strike(LineFaults(drop_every=nth, torn_share=0.3))
        eventually(lambda: dropped() >= before + _LOST_REPLIES, 30, f"{_LOST_REPLIES} replies are lost")
        strike(None)
        return f"every {nth}th reply was lost, {dropped() - before} of them"

    return drop_replies


def wait_seconds(seconds: float) -> None:
    """Lets time pass in which a fault lasts."""
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= until, 2 * seconds + 10, f"{seconds:g} s have passed")
