"""A master with replicas, without anybody who would promote one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

from tests.servers.flavours import STRICT, Flavour, Settings
from tests.servers.group import ServerGroup, has_replicas, replicates, start_together
from tests.servers.loopback import HOST
from tests.servers.redis_server import RedisServer

#: A replica has its data at once instead of after five seconds, and says every second how far it is.
QUICK_REPLICATION: Final[Settings] = {"repl-diskless-sync-delay": 0, "repl-ping-replica-period": 1}


class Replicas(ServerGroup):
    """One master and its replicas."""

    def __init__(
        self, replicas: int = 1, flavour: Flavour = "redis", *, profile: Settings = STRICT, **options: Any
    ) -> None:
        settings = {**profile, **QUICK_REPLICATION}
        self.master = RedisServer(flavour, profile=settings, **options)
        self.replicas = [RedisServer(flavour, profile=settings, **options) for _ in range(replicas)]

    @property
    def servers(self) -> Sequence[RedisServer]:
        """The master first."""
        return [self.master, *self.replicas]

    @property
    def url(self) -> str:
        """The master's."""
        return self.master.url

    def start(self) -> Self:
        """Starts all and returns when every replica is in step."""
        start_together(self.servers)
        for replica in self.replicas:
            replica.command("REPLICAOF", HOST, self.master.port)
            replica.command("CONFIG", "REWRITE")  # a restarted replica is one again
        return self.wait_until_whole()

    def wait_until_whole(self, timeout: float = 30.0) -> Self:
        """Returns when every replica follows and the master knows."""
        self.waited(lambda: all(map(replicates, self.replicas)), timeout, f"replicas of {self.master} follow")
        self.waited(lambda: has_replicas(self.master, len(self.replicas)), timeout, f"{self.master} has its replicas")
        return self
