"""A real cluster: masters with replicas, made with the commands that any operator's tool sends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, Self

from redis.crc import key_slot
from redis.exceptions import RedisError, ResponseError

from tests.servers.cluster_view import NodeLine, nodes_in
from tests.servers.flavours import STRICT, Flavour, Settings
from tests.servers.group import ServerGroup, has_replicas, replicates, start_together
from tests.servers.loopback import HOST
from tests.servers.redis_server import RedisServer, fields_of
from tests.servers.replicas import QUICK_REPLICATION

SLOTS: Final = 16_384
_MIGRATE_TIMEOUT_MS = 5_000
#: How long the votes of an election count, at least.
_VOTES_S = 2.0
#: CLUSTER FAILOVER gives up after five seconds if the replica is not in step by then.
_FAILOVER_TRY_S = 6.0


def slot_of(key: str | int) -> int:
    """The slot of a key; a number is a slot already."""
    return key if isinstance(key, int) else key_slot(key.encode())


class RedisCluster(ServerGroup):
    """By default three masters with one replica each, which take a node for dead after a second."""

    def __init__(
        self,
        masters: int = 3,
        replicas_per_master: int = 1,
        *,
        node_timeout_ms: int = 1_000,
        flavour: Flavour = "redis",
        profile: Settings = STRICT,
        **options: Any,
    ) -> None:
        settings = {
            **profile,
            **QUICK_REPLICATION,
            "cluster-node-timeout": node_timeout_ms,
            "cluster-allow-replica-migration": False,
            "cluster-require-full-coverage": False,
        }
        self.replicas_per_master = replicas_per_master
        self._masters = masters
        self._votes_s = max(2 * node_timeout_ms / 1_000, _VOTES_S) + 0.5
        self._epoch = 0
        self._quiet_at = 0.0
        count = masters * (1 + replicas_per_master)
        self._servers = [RedisServer(flavour, profile=settings, cluster=True, **options) for _ in range(count)]

    @property
    def servers(self) -> Sequence[RedisServer]:
        """The first masters come first; roles change with every failover."""
        return self._servers

    @property
    def url(self) -> str:
        """What a client connects to: all nodes."""
        password = self._servers[0].password
        login = f":{password}@" if password else ""
        return f"redis+cluster://{login}{','.join(f'{HOST}:{server.port}' for server in self._servers)}"

    # -- starting -------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Starts all nodes and makes them a cluster; returns when every node calls it good."""
        start_together(self._servers)
        self._hand_out_slots()
        self._introduce()
        self._attach_replicas()
        self.wait_until_whole()
        self._quiet_at = 0.0  # nobody was elected yet
        return self

    def _hand_out_slots(self) -> None:
        bounds = [SLOTS * number // self._masters for number in range(self._masters + 1)]
        for number, master in enumerate(self._servers[: self._masters]):
            master.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            master.command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)

    def _introduce(self) -> None:
        # Everybody meets everybody: by gossip alone, it takes seconds until the last one is known to all.
        for one in self._servers:
            for other in self._servers:
                if one is not other:
                    one.command("CLUSTER", "MEET", HOST, other.port, other.bus_port)
        self.waited(lambda: all(map(self._knows_everybody, self._servers)), 30.0, "all nodes know all nodes")

    def _knows_everybody(self, server: RedisServer) -> bool:
        nodes = self.view(server)
        return len(nodes) == len(self._servers) and all(node.is_sound for node in nodes)

    def _attach_replicas(self) -> None:
        for number, replica in enumerate(self._servers[self._masters :]):
            master = self._servers[number % self._masters]
            replica.command("CLUSTER", "REPLICATE", self.node_id(master))

    # -- looking --------------------------------------------------------------------------------------------

    def view(self, server: RedisServer) -> list[NodeLine]:
        """The cluster as this node sees it."""
        return nodes_in(server.command("CLUSTER", "NODES"))

    def myself(self, server: RedisServer) -> NodeLine:
        """What this node says of itself."""
        return next(node for node in self.view(server) if "myself" in node.flags)

    def node_id(self, server: RedisServer) -> str:
        """The id of this node."""
        return str(server.command("CLUSTER", "MYID"))

    def masters(self) -> list[RedisServer]:
        """The nodes that call themselves masters and have slots."""
        found = [(server, line) for server in self._servers if (line := self._own_line(server))]
        return [server for server, line in found if line.is_master and line.slots]

    def master_of(self, key: str | int) -> RedisServer:
        """The node that owns the slot of this key, or this slot."""
        owner = self._owner(slot_of(key))
        assert owner, f"nobody owns slot {slot_of(key)}"
        return owner

    def _owner(self, slot: int) -> RedisServer | None:
        lines = [
            (line.epoch, server) for server in self._servers if (line := self._own_line(server)) and slot in line.slots
        ]
        # An old master that was frozen still thinks that it is one: the newest epoch is right.
        return max(lines, key=lambda pair: pair[0])[1] if lines else None

    def replicas_of(self, master: RedisServer) -> list[RedisServer]:
        """The nodes that follow this master."""
        master_id = self.node_id(master)
        lines = [(server, self._own_line(server)) for server in self._servers]
        return [server for server, line in lines if line and line.master_id == master_id]

    def _own_line(self, server: RedisServer) -> NodeLine | None:
        try:
            return self.myself(server) if server.running else None
        except (RedisError, OSError):
            return None

    def wait_until_whole(self, timeout: float = 30.0) -> Self:
        """Returns when every node runs, calls the cluster good, agrees on the owners, and replicates."""
        self.waited(self._is_whole, timeout, "the cluster is whole")
        self._note_elections()
        return self

    def wait_until_serving(self, timeout: float = 30.0) -> Self:
        """Returns when the nodes that run have an owner for every slot and call the cluster good."""
        self.waited(self._is_serving, timeout, "every slot is served")
        return self

    def _is_whole(self) -> bool:
        try:
            return all(server.running for server in self._servers) and self._is_serving() and self._replicates()
        except (RedisError, OSError):
            return False

    def _is_serving(self) -> bool:
        try:
            running = [server for server in self._servers if server.running]
            owners = {_owners(self.view(server)) for server in running}
            return (
                len(owners) == 1 and sum(len(slots) for _, slots in owners.pop()) == SLOTS and all(map(_is_ok, running))
            )
        except (RedisError, OSError):
            return False

    def _replicates(self) -> bool:
        masters = self.masters()
        replicas = [server for server in self._servers if server not in masters]
        sound = all(node.is_sound for server in self._servers for node in self.view(server))
        return (
            sound and all(map(replicates, replicas)) and all(has_replicas(m, self.replicas_per_master) for m in masters)
        )

    # -- faults ---------------------------------------------------------------------------------------------

    def kill_master(self, key: str | int, *, wait: bool = True) -> RedisServer:
        """SIGKILL to the master of this key; returns it, when its replica has taken over."""
        self.wait_until_quiet()
        old = self.master_of(key)
        old.kill()
        if wait:
            self.wait_for_another_master(key, old)
        return old

    def freeze_master(self, key: str | int, *, wait: bool = True) -> RedisServer:
        """SIGSTOP to the master of this key; returns it, when its replica has taken over."""
        self.wait_until_quiet()
        old = self.master_of(key)
        old.freeze()
        if wait:
            self.wait_for_another_master(key, old)
        return old

    def failover(self, key: str | int) -> RedisServer:
        """CLUSTER FAILOVER on a replica of this key's master; returns the new master."""
        self.wait_until_quiet()
        old = self.master_of(key)
        [replica, *_] = self.replicas_of(old)
        for _ in range(3):
            replica.command("CLUSTER", "FAILOVER")
            try:
                return self.wait_for_another_master(key, old, _FAILOVER_TRY_S)
            except AssertionError:
                continue
        raise AssertionError(f"{replica} did not take over from {old}")

    def wait_for_another_master(self, key: str | int, old: RedisServer, timeout: float = 30.0) -> RedisServer:
        """The master of this key, as soon as it is another one and all that run say so."""

        def another() -> RedisServer | None:
            master = self._owner(slot_of(key))
            return master if master is not old and self._is_serving() else None

        new = self.waited(another, timeout, f"another than {old} is master of slot {slot_of(key)}")
        assert new is not None
        self._note_elections()
        return new

    def wait_until_quiet(self) -> None:
        """Returns when the votes of the last election have run out; every fault of this class begins with it.

        A replica of Redis 7.0 that won an election, lost its role, and has to stand again within two seconds counts
        its old votes: it makes itself a master with an old epoch, which nobody believes, and the slots stay unserved.
        """
        self._note_elections()
        self.waited(lambda: time.monotonic() >= self._quiet_at, 2 * self._votes_s, "old votes have run out")

    def _note_elections(self) -> None:
        """Remembers when a change of the epoch was first seen; that is when somebody was elected, or shortly after."""
        epoch = max(line.epoch for server in self._servers if (line := self._own_line(server)))
        if epoch != self._epoch:
            self._epoch, self._quiet_at = epoch, time.monotonic() + self._votes_s

    # -- moving slots ---------------------------------------------------------------------------------------

    def migrate_slot(self, key: str | int, to: RedisServer) -> None:
        """Moves a slot with all of its keys, as a resharding does."""
        source = self.begin_migration(key, to)
        while self.move_keys(key, source, to):
            pass
        self.finish_migration(key, source, to)

    def begin_migration(self, key: str | int, to: RedisServer) -> RedisServer:
        """Opens both ends: from here on clients see ASK and TRYAGAIN; returns the source."""
        slot, source = slot_of(key), self.master_of(key)
        assert source is not to, f"{to} has slot {slot} already"
        to.command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.node_id(source))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.node_id(to))
        return source

    def move_keys(self, key: str | int, source: RedisServer, to: RedisServer, limit: int = 100) -> int:
        """Moves up to so many keys of the slot; returns how many."""
        keys = source.command("CLUSTER", "GETKEYSINSLOT", slot_of(key), limit)
        login = ["AUTH", to.password] if to.password else []
        if keys:
            source.command("MIGRATE", HOST, to.port, "", 0, _MIGRATE_TIMEOUT_MS, *login, "KEYS", *keys)
        return len(keys)

    def finish_migration(self, key: str | int, source: RedisServer, to: RedisServer) -> None:
        """Makes the target the owner, target first: if all ended in between, nobody would own the slot otherwise."""
        slot, target_id = slot_of(key), self.node_id(to)
        others = [server for server in self.masters() if server not in (source, to)]
        for server in [to, source, *others]:
            self._tell_owner(server, slot, target_id)
        self.wait_until_serving()

    def _tell_owner(self, server: RedisServer, slot: int, owner_id: str) -> None:
        try:
            server.command("CLUSTER", "SETSLOT", slot, "NODE", owner_id)
        except ResponseError as error:
            # A source whose keys came back by a late ASK: move them too.
            raise AssertionError(f"{server} does not give slot {slot} away: {error}") from error

    def flush(self) -> None:
        """Deletes all data."""
        for master in self.masters():
            master.flush()


def _is_ok(server: RedisServer) -> bool:
    return fields_of(server.command("CLUSTER", "INFO"))["cluster_state"] == "ok"


def _owners(nodes: Sequence[NodeLine]) -> frozenset[tuple[str, frozenset[int]]]:
    return frozenset(
        (node.node_id, node.slots) for node in nodes if node.is_master and node.slots and "fail" not in node.flags
    )
