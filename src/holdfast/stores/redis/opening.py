"""From a Redis URL to a store."""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.errors import BadUrl
from holdfast.stores.contract import Store


def open_redis(url: str, clock: Clock) -> Store:
    """One partition on the servers of this URL; nothing is connected to before the first call."""
    try:
        from holdfast.stores.redis.link import open_link
        from holdfast.stores.redis.store import RedisStore
        from holdfast.stores.redis.urls import parse_redis_url
    except ModuleNotFoundError as missing:
        if missing.name is None or not missing.name.startswith("redis"):
            raise
        raise BadUrl("redis:// needs the redis package; run: pip install 'holdfast[redis]'") from None
    settings = parse_redis_url(url)
    return RedisStore(open_link(settings), prefix=settings.prefix, clock=clock)
