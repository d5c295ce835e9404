"""The store on Redis or Valkey, from its URL; the client library is needed when one is opened."""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.errors import BadUrl
from holdfast.stores.contract import Store


def open_redis(url: str, clock: Clock) -> Store:
    """The store on the servers of this URL; nothing is connected to before the first call."""
    try:
        from holdfast.stores.redis.link import Link
        from holdfast.stores.redis.store import RedisStore
        from holdfast.stores.redis.urls import parse_redis_url
    except ModuleNotFoundError as missing:
        if missing.name is None or not missing.name.startswith("redis"):
            raise
        raise BadUrl("redis:// needs the redis package; run: pip install redis hiredis") from None
    settings = parse_redis_url(url)
    link, count = Link(settings), settings.partitions or 1
    partitions = [RedisStore(link, prefix=settings.prefix, clock=clock, partition=number) for number in range(count)]
    if count == 1:
        return partitions[0]
    from holdfast.stores.sharded.store import ShardedStore

    return ShardedStore(partitions)
