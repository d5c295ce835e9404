"""Servers that many tests share: each is started when the first test asks for it, and ends with the process."""

from __future__ import annotations

from functools import cache

from tests.servers.cluster import RedisCluster
from tests.servers.flavours import DURABLE, FAST, STRICT, Flavour
from tests.servers.redis_server import RedisServer
from tests.servers.sentinels import Sentinels


@cache
def shared_server(flavour: Flavour) -> RedisServer:
    """A server without persistence, for the kit and everything that wants to be fast."""
    return RedisServer(flavour, profile={**FAST, "maxmemory-policy": "noeviction"}).__enter__()


@cache
def shared_durable_server(flavour: Flavour) -> RedisServer:
    """A server with an AOF that is on disk before each reply."""
    return RedisServer(flavour, profile=DURABLE).__enter__()


@cache
def shared_cluster(flavour: Flavour) -> RedisCluster:
    """Three masters with a replica each, strict."""
    return RedisCluster(flavour=flavour, profile=STRICT).__enter__()


@cache
def shared_sentinels(flavour: Flavour) -> Sentinels:
    """A master, a replica and three Sentinels, strict."""
    return Sentinels(flavour=flavour, profile=STRICT).__enter__()
