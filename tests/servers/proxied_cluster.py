"""A cluster whose clients talk to every node through a line that can be made bad."""

from __future__ import annotations

from typing import Any

from tests.servers.cluster import RedisCluster
from tests.servers.loopback import HOST
from tests.servers.proxy import FaultProxy, LineFaults


class ProxiedCluster(RedisCluster):
    """Each node announces the port of its proxy, so that redirections lead through the proxies too.

    Replicas follow their masters through them as well; what the nodes tell each other about themselves does not.
    """

    def __init__(self, *args: Any, seed: int = 0, **options: Any) -> None:
        super().__init__(*args, **options)
        self.proxies: list[FaultProxy] = []
        self._seed = seed

    @property
    def url(self) -> str:
        """All nodes, through their proxies."""
        return f"redis+cluster://{','.join(f'{HOST}:{proxy.port}' for proxy in self.proxies)}"

    def strike(self, faults: LineFaults | None = None) -> None:
        """The same faults on every line; with none, all lines are good."""
        for proxy in self.proxies:
            proxy.strike(faults)

    @property
    def dropped(self) -> int:
        """How many replies were lost so far."""
        return sum(proxy.struck.dropped for proxy in self.proxies)

    def end(self) -> None:
        """Nothing is left of nodes and proxies."""
        super().end()
        for proxy in self.proxies:
            proxy.end()
        self.proxies = []

    def _introduce(self) -> None:
        for number, server in enumerate(self.servers):
            proxy = FaultProxy(server.address, seed=self._seed + number).start()
            self.proxies.append(proxy)
            server.command("CONFIG", "SET", "cluster-announce-port", proxy.port)
            server.command("CONFIG", "REWRITE")  # so that it holds after a restart
        super()._introduce()
