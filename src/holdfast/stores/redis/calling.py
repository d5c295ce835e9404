"""One partition on a server, and the calls of its scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.clock import Clock, SystemClock
from holdfast.errors import StaleEpoch
from holdfast.stores.redis.clients import Word
from holdfast.stores.redis.keys import partition_key
from holdfast.stores.redis.scripts import script
from holdfast.stores.single import SinglePartition, stale_map

if TYPE_CHECKING:
    from holdfast.stores.redis.link import Link

#: One script handles so many tasks at most: a longer one would hold up everybody else. Only a reserve must stay whole,
#: since a repeat with its claim_id has to find all of it, and a schedule's tick; workers ask for as many tasks as they
#: have free slots.
MAX_TASKS: Final = 200
STALE_MAP: Final = b"stale_map"


class Calling(SinglePartition):
    """Runs scripts on one partition."""

    def __init__(self, link: Link, *, prefix: str, clock: Clock, partition: int = 0) -> None:
        self.url = link.url
        self.partition = partition
        self._link = link
        self._base = partition_key(prefix, partition)
        #: Only the stepped clock of a test is sent along; otherwise the server's own decides.
        self._clock = None if isinstance(clock, SystemClock) else clock

    async def _call(self, name: str, *args: Word, safe: bool = False) -> Any:
        return await self._link.call(script(name), self._base, (self._now(), *args), safe=safe)

    def _now(self) -> str:
        return "" if self._clock is None else str(self._clock.now_ms())

    def _unless_stale(self, reply: Any) -> Any:
        """The reply, if the call was not refused for being routed by an old map."""
        if reply[0] == STALE_MAP:
            raise stale_map(self.url, reply[1])
        return reply


def current(reply: Sequence[int], epoch: int | None) -> Sequence[int]:
    """The reply, if the call was not refused for being of an old epoch."""
    if reply[0] < 0:
        raise StaleEpoch(f"upkeep belongs to epoch {reply[1]} now, this call is of epoch {epoch}")
    return reply


def chunks(items: Sequence[Any]) -> list[Sequence[Any]]:
    """The items in parts that one script may handle."""
    return [items[first : first + MAX_TASKS] for first in range(0, len(items), MAX_TASKS)]
