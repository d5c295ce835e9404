"""Scripts that may be run twice, and links that are closed again."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from holdfast.errors import StoreUnavailable
from holdfast.stores.redis.link import Link, open_link
from holdfast.stores.redis.scripts import Script
from holdfast.stores.redis.urls import parse_redis_url
from tests.support import eventually

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
    link = open_link(parse_redis_url(f"{url}{'&' if '?' in url else '?'}{query}" if query else url))
    try:
        yield link
    finally:
        await link.close()


async def ids_in(link: Link, key: str = KEY) -> set[str]:
    return {each.decode() for each in await link.call(ALL_IDS, key, [])}


class Callers:
    """Calls that go on until they are stopped; each is made again, with its id, until it is answered."""

    def __init__(self, link: Link, *, key: str = KEY, safe: bool = True, count: int = 4) -> None:
        self.acknowledged: list[str] = []
        self.gave_up = 0
        self._link = link
        self._key = key
        self._safe = safe
        self._stop = asyncio.Event()
        self._tasks = [asyncio.create_task(self._go_on(number)) for number in range(count)]

    async def more(self, number: int = 50) -> None:
        """Returns when so many more were acknowledged."""
        goal = len(self.acknowledged) + number
        while len(self.acknowledged) < goal:
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.005)

    async def stop(self) -> set[str]:
        """Ends the calls; returns every id that was acknowledged."""
        self._stop.set()
        await asyncio.gather(*self._tasks)
        return set(self.acknowledged)

    async def _go_on(self, caller: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            await self._record(f"{caller}-{number}")

    async def _record(self, name: str) -> None:
        while True:
            try:
                await self._link.call(RECORD, self._key, [name, name], safe=self._safe)
            except StoreUnavailable:
                self.gave_up += 1
            else:
                self.acknowledged.append(name)
                return


async def in_thread(function: Any, *arguments: Any) -> Any:
    """A call that blocks, beside the event loop."""
    return await asyncio.to_thread(function, *arguments)


async def until(condition: Callable[[], object], what: str) -> None:
    """Returns when the condition, looked at beside the event loop, is true."""
    await in_thread(eventually, condition, 30.0, what)


def one_line(error: BaseException, *secrets: str) -> str:
    """The message, which is one line and has none of the secrets in it, nor do its causes."""
    text = str(error)
    assert "\n" not in text
    chain: Sequence[BaseException | None] = [
        error,
        error.__cause__,
        None if error.__suppress_context__ else error.__context__,
    ]
    for secret in secrets:
        assert all(secret not in str(each) + repr(each) for each in chain if each)
    return text
