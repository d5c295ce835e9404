"""A master, its replicas, and Sentinels that promote one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

from redis.exceptions import RedisError

from tests.servers.flavours import STRICT, Flavour, Settings
from tests.servers.group import ServerGroup, has_replicas, replicates, start_together
from tests.servers.loopback import HOST
from tests.servers.redis_server import RedisServer
from tests.servers.replicas import Replicas

SERVICE: Final = "holdfast"
#: How often a Sentinel asks and tells, in ms. Left alone it looks every ten seconds, and healing takes that long.
_OFTEN: Final = ("INFO-PERIOD", 500, "PUBLISH-PERIOD", 200)
#: A Sentinel that was not scheduled for two seconds distrusts its clock and does nothing for as long as this, in ms.
#: Left alone it does nothing for thirty seconds, which on a busy machine is longer than any test waits for it.
_TILT: Final = ("TILT-PERIOD", 2_000)
#: Two elections that fail, each with the pause that Sentinels make before the next one.
_PROMOTION_SECONDS: Final = 60.0


class Sentinels(ServerGroup):
    """By default one master, one replica and three Sentinels that wait a second before they act."""

    def __init__(
        self,
        replicas: int = 1,
        sentinels: int = 3,
        flavour: Flavour = "redis",
        *,
        down_after_ms: int = 1_000,
        profile: Settings = STRICT,
        **options: Any,
    ) -> None:
        self.data = Replicas(replicas, flavour, profile=profile, **options)
        self.sentinels = [RedisServer(flavour, profile={}, sentinel=True) for _ in range(sentinels)]
        self._down_after_ms = down_after_ms

    @property
    def servers(self) -> Sequence[RedisServer]:
        """The servers with data first, in the order in which they were made."""
        return [*self.data.servers, *self.sentinels]

    @property
    def url(self) -> str:
        """What a client connects to: the Sentinels and the name of the service."""
        password = self.data.master.password
        login = f":{password}@" if password else ""
        places = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{login}{places}/{SERVICE}"

    # -- starting -------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Starts the data first, so that the Sentinels find the replicas at their first look."""
        self.data.start()
        for sentinel in self.sentinels:
            sentinel.use(self._settings())
        start_together(self.sentinels)
        for sentinel in self.sentinels:
            sentinel.command("SENTINEL", "DEBUG", *_OFTEN, *_TILT)
        return self.wait_until_whole()

    def _settings(self) -> Settings:
        master = self.data.master
        login = {f"sentinel auth-pass {SERVICE}": master.password} if master.password else {}
        return {
            f"sentinel monitor {SERVICE}": f"{HOST} {master.port} {len(self.sentinels) // 2 + 1}",
            f"sentinel down-after-milliseconds {SERVICE}": self._down_after_ms,
            f"sentinel failover-timeout {SERVICE}": 5 * self._down_after_ms,
            f"sentinel parallel-syncs {SERVICE}": 1,
            **login,
        }

    def wait_until_whole(self, timeout: float = 30.0) -> Self:
        """Returns when the Sentinels know each other and every replica, and all replicas follow one master."""
        self.waited(self._is_whole, timeout, "Sentinels agree and the replicas follow")
        return self

    def _is_whole(self) -> bool:
        try:
            master = self.master
            replicas = [server for server in self.data.servers if server is not master]
            return (
                all(self._knows_everybody(sentinel, master) for sentinel in self.sentinels)
                and all(map(replicates, replicas))
                and has_replicas(master, len(replicas))
            )
        except (RedisError, OSError, LookupError):
            return False

    def _knows_everybody(self, sentinel: RedisServer, master: RedisServer) -> bool:
        seen = _pairs(sentinel.command("SENTINEL", "MASTER", SERVICE))
        replicas = [_pairs(line) for line in sentinel.command("SENTINEL", "REPLICAS", SERVICE)]
        return (
            int(seen["port"]) == master.port
            and seen["flags"] == "master"
            and int(seen["num-other-sentinels"]) == len(self.sentinels) - 1
            and len(replicas) == len(self.data.replicas)
            and all(replica["flags"] == "slave" for replica in replicas)
        )

    # -- faults ---------------------------------------------------------------------------------------------

    @property
    def master(self) -> RedisServer:
        """The server that most Sentinels call the master."""
        ports = [port for sentinel in self.sentinels if (port := _master_port(sentinel))]
        port = max(set(ports), key=ports.count)
        return next(server for server in self.data.servers if server.port == port)

    def kill_master(self) -> RedisServer:
        """SIGKILL to the master; returns it, when another one was made master."""
        old = self.master
        old.kill()
        self._wait_for_another_than(old)
        return old

    def failover(self) -> RedisServer:
        """Tells the Sentinels to promote a replica; returns the new master."""
        old = self.master
        # A Sentinel refuses right after the last failover, and while it does not see a good replica.
        self.waited(self._asked_for_failover, _PROMOTION_SECONDS, "a Sentinel begins a failover")
        return self._wait_for_another_than(old)

    def _asked_for_failover(self) -> bool:
        try:
            return bool(self.sentinels[0].command("SENTINEL", "FAILOVER", SERVICE))
        except RedisError:
            return False

    def _wait_for_another_than(self, old: RedisServer) -> RedisServer:
        def promoted() -> RedisServer | None:
            master = self.master
            try:
                return master if master is not old and master.command("ROLE")[0] == "master" else None
            except (RedisError, OSError):
                return None

        new = self.waited(promoted, _PROMOTION_SECONDS, f"the Sentinels promote another than {old}")
        assert new is not None
        return new


def _master_port(sentinel: RedisServer) -> int | None:
    try:
        return int(sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1]) if sentinel.running else None
    except (RedisError, OSError):
        return None


def _pairs(words: Sequence[str]) -> dict[str, str]:
    return dict(zip(words[::2], words[1::2], strict=True))
