"""The servers that these tests share."""

from __future__ import annotations

from tests.servers.fixtures import (
    any_server,
    durable_server,
    flavour,
    redis_cluster,
    redis_sentinels,
    redis_server,
    valkey_server,
)

__all__ = [
    "any_server",
    "durable_server",
    "flavour",
    "redis_cluster",
    "redis_sentinels",
    "redis_server",
    "valkey_server",
]
