"""Scripts that may be run twice, and links that are closed again."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from holdfast.stores.redis.link import Link
from holdfast.stores.redis.scripts import Script
from holdfast.stores.redis.urls import parse_redis_url
from tests.servers.callers import Callers

#: The key that all scripts are called with, and the others that they touch share its slot.
KEY: Final = "{hf:0}"


def script(name: str, text: str) -> Script:
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


#: Keeps a value under an id; the same id again changes nothing.
RECORD: Final = script(
    "record",
    "#!lua\nif redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 1 then return 'created' end return 'known'",
)
#: Two keys, as the real scripts have: one that is named and one that is found by the script.
RECORD_BESIDE: Final = script(
    "record_beside",
    "#!lua\n"
    "local beside = KEYS[1] .. ':' .. ARGV[1]\n"
    "local known = redis.call('EXISTS', beside)\n"
    "redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[1])\n"
    "redis.call('SET', beside, ARGV[1])\n"
    "return known\n",
)
#: As the store does it: the named key never exists, all data is under names that begin with it.
RECORD_BELOW: Final = script(
    "record_below",
    "#!lua\nredis.call('HSET', KEYS[1] .. '/all', ARGV[1], '1')\n"
    "return redis.call('SETNX', KEYS[1] .. '/' .. ARGV[1], '1')",
)
READ: Final = script("read", "#!lua flags=no-writes\nreturn redis.call('HGET', KEYS[1], ARGV[1])")
ALL_IDS: Final = script("all_ids", "#!lua flags=no-writes\nreturn redis.call('HKEYS', KEYS[1])")
BROKEN: Final = script("broken", "#!lua\nreturn redis.call('HGET', KEYS[1])")


@asynccontextmanager
async def linked(url: str, **options: str | int) -> AsyncIterator[Link]:
    """A link to this URL with these options."""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    link = Link(parse_redis_url(f"{url}{'&' if '?' in url else '?'}{query}" if query else url))
    try:
        yield link
    finally:
        await link.close()


async def ids_in(link: Link, key: str = KEY) -> set[str]:
    return {each.decode() for each in await link.call(ALL_IDS, key, [])}


def recording(link: Link, *, key: str = KEY, safe: bool = True, count: int = 4) -> Callers:
    """Callers that record ids under a key."""
    return Callers(lambda name: link.call(RECORD, key, [name, name], safe=safe), count)
