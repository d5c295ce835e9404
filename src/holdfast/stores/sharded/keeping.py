"""Values under keys: a key has one partition, whichever those of the tasks that use it are.

Where claim and key lie in different partitions, the claim is looked at first, and the value is kept then: a worker that
loses its claim between the two may still be the first to keep. It overwrites nothing, and what it keeps has happened.
"""

from __future__ import annotations

import zlib
from typing import Final

from holdfast.core.partitions import PartitionMap
from holdfast.core.task import Hold
from holdfast.stores.contract import Kept
from holdfast.stores.sharded.routing import Router

#: Longer than any lease can have run out and not be requeued.
_LONG_AGO_MS: Final = 10 * 365 * 86_400_000


def home(current: PartitionMap, key: str) -> int:
    """The partition of a key: among those that there were at first, so that it stays the same for ever."""
    return zlib.crc32(key.encode()) % current.base


async def keep(router: Router, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Kept:
    """Keeps a value in the partition of its key, if the claim is current in the partition of its task."""
    place = home(await router.map(), key)
    store = router.stores[place]
    if hold is None or router.partition(hold.task_id) == place:
        return await store.keep(key, value, ttl_ms, hold)
    reason = await _objection(router, hold)
    return Kept(await store.kept(key), reason) if reason else await store.keep(key, value, ttl_ms, None)


async def kept(router: Router, key: str) -> bytes | None:
    """What is kept under this key."""
    return await router.stores[home(await router.map(), key)].kept(key)


async def _objection(router: Router, hold: Hold) -> str:
    """Why the claim is not current. Extended to a time that has passed, it stays as it is."""
    store = router.stores[router.partition(hold.task_id)]
    [answer] = await store.extend([Hold(hold.task_id, hold.token)], -_LONG_AGO_MS)
    return answer.reason
