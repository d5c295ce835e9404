"""What is the same in every store that is one partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from holdfast.core.partitions import PartitionMap
from holdfast.core.task import Enqueued, NewTask
from holdfast.errors import StaleMap
from holdfast.stores.contract import Placement, Store


class SinglePartition:
    """The part of the contract that a store of one partition answers without asking its engine."""

    map_version = 0
    #: The partition that ids of new tasks carry when this store is used alone.
    partition = 0

    def enqueue_now(self, tasks: Sequence[NewTask]) -> list[Enqueued] | None:
        """No such way, unless the engine has one."""
        del tasks
        return None

    async def placement(self) -> Placement:
        """All of them here."""
        return self._here_always

    def partitions(self) -> Sequence[Store]:
        """Itself."""
        return [cast("Store", self)]

    def _here_always(self, queue: str, request_id: str | None) -> int:
        del queue, request_id
        return self.partition


def stale_map(url: str, current: PartitionMap | int) -> StaleMap:
    """The refusal of a call that was routed by an older map than the current one, or by none."""
    version = current if isinstance(current, int) else current.version
    return StaleMap(
        f"{url}: the partition map has version {version} now, the call was routed by an older one; "
        "a store with several partitions is opened with the URLs of all of them, separated by commas"
    )
