"""From a Redis URL to a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import Clock
from holdfast.errors import BadUrl
from holdfast.stores.contract import Store

if TYPE_CHECKING:
    from holdfast.stores.redis.link import Link
    from holdfast.stores.redis.urls import RedisSettings


def open_redis(url: str, clock: Clock) -> Store:
    """The store on the servers of this URL; nothing is connected to before the first call."""
    try:
        from holdfast.stores.redis.link import open_link
        from holdfast.stores.redis.urls import parse_redis_url
    except ModuleNotFoundError as missing:
        if missing.name is None or not missing.name.startswith("redis"):
            raise
        raise BadUrl("redis:// needs the redis package; run: pip install 'holdfast[redis]'") from None
    settings = parse_redis_url(url)
    return _store(open_link(settings), settings, clock)


def _store(link: Link, settings: RedisSettings, clock: Clock) -> Store:
    from holdfast.stores.redis.store import RedisStore
    from holdfast.stores.sharded.store import ShardedStore

    count = settings.partitions or 1
    partitions = [RedisStore(link, prefix=settings.prefix, clock=clock, partition=number) for number in range(count)]
    return ShardedStore(partitions) if count > 1 else partitions[0]
