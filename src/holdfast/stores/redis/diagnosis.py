"""Finds out, when nothing but silence is heard, whether one side speaks TLS and the other does not."""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.errors import BadUrl
from holdfast.stores.redis.urls import Address, RedisSettings
from holdfast.stores.tls import speaks_tls

_SECONDS: Final = 1.0


async def misunderstanding(settings: RedisSettings, address: Address) -> BadUrl | None:
    """What to change in the URL, if the server speaks the other language."""
    if settings.tls and await _speaks_plainly(address):
        return BadUrl(f"{settings.url}: no TLS on this port; write redis:// instead of rediss://, or name the TLS port")
    if not settings.tls and await speaks_tls(*address):
        return BadUrl(f"{settings.url}: the server wants TLS on this port; write rediss:// instead of redis://")
    return None


async def _speaks_plainly(address: Address) -> bool:
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(b"PING\r\n")
                return (await reader.read(1)) in {b"+", b"-"}
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return False
