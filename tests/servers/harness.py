"""The kit's hold on a store on a Redis or Valkey server."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock
from tests.servers.cluster import RedisCluster
from tests.servers.redis_server import RedisServer

_SCAN_COUNT: Final = 1_000


class RedisHarness:
    """Data of its own on a shared server, told apart by the prefix of its keys."""

    persistent = True

    def __init__(self, url: str, masters: Callable[[], Sequence[RedisServer]]) -> None:
        self.clock = SteppedClock()
        self._prefix = f"kit-{secrets.token_hex(8)}"
        self._url = f"{url}?prefix={self._prefix}"
        self._masters = masters

    async def open(self) -> Store:
        """A store on these keys."""
        return open_store(self._url, clock=self.clock)

    async def destroy(self) -> None:
        """Deletes every key with the prefix, on every master."""
        for master in self._masters():
            delete_keys(master, f"*{self._prefix}*")


def delete_keys(server: RedisServer, pattern: str) -> int:
    """Deletes the keys that match; returns how many."""
    with server.client(decode_responses=False) as client:
        keys = list(client.scan_iter(match=pattern, count=_SCAN_COUNT))
        # One by one in a pipeline: on a cluster, a command with several keys needs them in one slot.
        pipeline = client.pipeline(transaction=False)
        for key in keys:
            pipeline.unlink(key)
        pipeline.execute()
        return len(keys)


def server_harness(server: RedisServer) -> RedisHarness:
    """On one server, which runs even if the last test left it dead."""
    if not server.running:
        server.heal()
    return RedisHarness(server.url, lambda: [server])


def cluster_harness(cluster: RedisCluster) -> RedisHarness:
    """On a cluster, spread over its masters, all of which run even if the last test left some dead."""
    if not all(server.running for server in cluster.servers):
        cluster.heal()
    return RedisHarness(cluster.url, cluster.masters)
