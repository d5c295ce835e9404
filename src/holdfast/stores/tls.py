"""Whether somebody speaks TLS, for those who have heard nothing but silence."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

_SECONDS: Final = 1.0


async def speaks_tls(host: str, port: int) -> bool:
    """Whether what listens there begins to speak TLS."""
    anybody = ssl.create_default_context()
    # Nothing is said on this connection, so it does not matter with whom.
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=anybody)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True
