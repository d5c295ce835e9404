"""Which server is the master of a key at this moment, and how many of its replicas must confirm a write.

The master is a fixed address, the one that the Sentinels name, or the one that has the slot in a cluster.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from redis.crc import key_slot
from redis.exceptions import AuthenticationError, ClusterDownError, MovedError
from redis.exceptions import ConnectionError as NoConnection

from holdfast.stores.redis.connection import Command, ask
from holdfast.stores.redis.doctor import check_master, is_forbidden, mapping, text
from holdfast.stores.redis.errors import TROUBLES, TooFewReplicas
from holdfast.stores.redis.urls import Address, RedisSettings

#: One that does not answer must not use up the time in which another one could.
ASK_SECONDS: Final = 1.0
#: Many calls that fail at once need one new look, not one each.
_FRESH_SECONDS: Final = 0.05
#: How old the count of replicas may be: a new one is waited for soon, and the counting costs next to nothing.
_COUNT_SECONDS: Final = 5.0

Exchange = Callable[[Address, Sequence[Command]], Awaitable[list[Any]]]


class Route(Protocol):
    """Finds the masters, for one event loop."""

    async def find(self, key: str) -> Address:
        """The master that keeps this key."""
        ...

    async def masters(self) -> list[Address]:
        """All masters."""
        ...

    async def promotable(self, master: Address) -> int:
        """How many replicas could become master in place of this one, as far as is known."""
        ...

    def moved(self, error: MovedError, origin: Address) -> None:
        """A server said who has the slot now."""
        ...

    def doubt(self, address: Address | None) -> None:
        """Looks again before the next call: this address did not do what a master does."""
        ...


def route_for(settings: RedisSettings) -> Route:
    """The route that fits the URL."""
    if settings.kind == "sentinel":
        return SentinelRoute(settings)
    if settings.kind == "cluster":
        return ClusterRoute(settings)
    return FixedRoute(settings.addresses[0])


class FixedRoute:
    """One server, always the same."""

    def __init__(self, address: Address) -> None:
        self._address = address

    async def find(self, key: str) -> Address:  # noqa: ARG002
        """The one address."""
        return self._address

    async def masters(self) -> list[Address]:
        """The one address."""
        return [self._address]

    async def promotable(self, master: Address) -> int:  # noqa: ARG002
        """Not known."""
        return 0

    def moved(self, error: MovedError, origin: Address) -> None:
        """Cannot happen: such an error is not repeated."""

    def doubt(self, address: Address | None) -> None:
        """There is no other."""


class SentinelRoute:
    """The master of a service, by the word of the Sentinels."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._bare = dataclasses.replace(settings, database=0, username=None, password=None)
        self._login = dataclasses.replace(settings, database=0)
        self._majority = len(settings.addresses) // 2 + 1
        self._master: Address | None = None

    async def find(self, key: str) -> Address:  # noqa: ARG002
        """The master that the Sentinels name."""
        if self._master is None:
            self._master = await self._newest_master()
        return self._master

    async def masters(self) -> list[Address]:
        """The one master."""
        return [await self.find("")]

    async def promotable(self, master: Address) -> int:  # noqa: ARG002
        """The replicas that a Sentinel may promote.

        One that is down does not count, but only if most Sentinels say so: the few on our side of a network that
        broke in two would call a replica down that the others are just promoting.
        """
        views = [self._up(reply) for reply in await self._majority_of("REPLICAS")]
        known, up = _union(all_known for all_known, _ in views), _union(up for _, up in views)
        return len(up if len(views) >= self._majority else known)

    def moved(self, error: MovedError, origin: Address) -> None:
        """Cannot happen: such an error is not repeated."""

    def doubt(self, address: Address | None) -> None:
        """Asks the Sentinels again."""
        if address in {None, self._master}:
            self._master = None

    async def _newest_master(self) -> Address:
        # The highest epoch wins: a Sentinel that was cut off still names the old master.
        views = [mapping(reply) for reply in await self._majority_of("MASTER")]
        newest = max(views, key=lambda view: int(view.get("config-epoch", 0)))
        return Address(newest["ip"], int(newest["port"]))

    def _up(self, reply: Any) -> tuple[set[str], set[str]]:
        """The replicas with a priority, and those of them that are not down."""
        replicas = [mapping(each) for each in reply]
        known = {each["name"]: each["flags"].split(",") for each in replicas if each.get("slave-priority") != "0"}
        return set(known), {name for name, flags in known.items() if not {"s_down", "o_down"}.intersection(flags)}

    async def _majority_of(self, what: str) -> list[Any]:
        """The answers of most Sentinels, or of as many as there are; the last error if none answers."""
        replies: list[Any] = []
        error: BaseException = NoConnection("no Sentinel answered")
        tasks = [asyncio.create_task(self._ask(address, what)) for address in self._settings.addresses]
        try:
            for task in asyncio.as_completed(tasks):
                try:
                    replies.append(await task)
                except TROUBLES as trouble:
                    error = trouble
                if len(replies) >= self._majority:
                    break
        finally:
            await _end(tasks)
        if not replies:
            raise error
        return replies

    async def _ask(self, sentinel: Address, what: str) -> Any:
        words = ("SENTINEL", what, self._settings.service)
        try:
            return await ask(self._bare, sentinel, *words, seconds=ASK_SECONDS)
        except AuthenticationError:
            # Most Sentinels have no password of their own; those that do share the one of the servers.
            if not self._settings.password:
                raise
            return await ask(self._login, sentinel, *words, seconds=ASK_SECONDS)


@dataclasses.dataclass(frozen=True, slots=True)
class Shard:
    """The servers of some slots."""

    master: Address
    replicas: int = 0


class ClusterRoute:
    """The slots of a cluster, learnt from any of its nodes and corrected by every MOVED."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._shards: dict[int, Shard] = {}
        self._nodes: set[Address] = set(settings.addresses)
        self._doubtful: set[Address] = set()
        self._looked_at = float("-inf")
        self._doubt_since: float | None = None
        self._looking = asyncio.Lock()

    async def find(self, key: str) -> Address:
        """The master of the key's slot."""
        if self._must_look():
            await self._look()
        shard = self._shards.get(key_slot(key.encode()))
        if shard is None:
            self.doubt(None)
            raise ClusterDownError("no server has this slot", status_code="CLUSTERDOWN")
        return shard.master

    async def masters(self) -> list[Address]:
        """All masters that have slots."""
        await self._look()
        return sorted({shard.master for shard in self._shards.values()})

    async def promotable(self, master: Address) -> int:
        """The replicas that the cluster has not found failed; only a majority of masters can find that."""
        await self._look()
        return max((shard.replicas for shard in self._shards.values() if shard.master == master), default=0)

    def moved(self, error: MovedError, origin: Address) -> None:
        """Takes the server's word for this slot; the replicas there are counted when they are needed."""
        self._shards[error.slot_id] = Shard(Address(error.host or origin.host, error.port))

    def doubt(self, address: Address | None) -> None:
        """Looks again before the next call, and asks this node last."""
        self._doubt_since = asyncio.get_running_loop().time()
        if address is not None:
            self._doubtful.add(address)

    def _must_look(self) -> bool:
        return not self._shards or (self._doubt_since is not None and self._doubt_since > self._looked_at)

    async def _look(self) -> None:
        async with self._looking:
            now = asyncio.get_running_loop().time()
            if now - self._looked_at < _FRESH_SECONDS and self._shards:
                return
            self._learn(*await self._slots())
            self._looked_at = now

    async def _slots(self) -> tuple[Address, list[Any]]:
        """The first answer of a node, and which node it was."""
        error: BaseException = NoConnection("the cluster has no nodes")
        for node in self._nodes_to_ask():
            try:
                return node, await ask(self._settings, node, "CLUSTER", "SLOTS", seconds=ASK_SECONDS)
            except TROUBLES as trouble:
                error = trouble
        raise error

    def _nodes_to_ask(self) -> list[Address]:
        nodes = list(self._nodes | set(self._settings.addresses))
        random.shuffle(nodes)  # Not all clients should ask the same one.
        return sorted(nodes, key=lambda node: node in self._doubtful)

    def _learn(self, origin: Address, ranges: Sequence[Any]) -> None:
        shards: dict[int, Shard] = {}
        nodes: set[Address] = set()
        for first, last, *servers in ranges:
            addresses = [_node_address(server, origin) for server in servers]
            nodes.update(addresses)
            shard = Shard(addresses[0], len(addresses) - 1)
            shards.update(dict.fromkeys(range(first, last + 1), shard))
        self._shards, self._nodes = shards, nodes
        self._doubtful.clear()


def _node_address(server: Sequence[Any], origin: Address) -> Address:
    # A node that does not know its own name leaves it out: it is the one that we asked.
    host = text(server[0]) if server[0] else ""
    return Address(origin.host if host in {"", "?"} else host, int(server[1]))


def _union(sets: Iterable[set[str]]) -> set[str]:
    return set().union(*sets)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Durability:
    """The level of one link, for one event loop.

    `local`: the master's word is enough. `replicated`: one replica has it too. `strict`: all replicas that are
    connected and all that could be promoted have it, at least one; a majority would not do, since those who elect a new
    master do not know who has the write.
    """

    def __init__(self, settings: RedisSettings, route: Route, exchange: Exchange) -> None:
        self._level = settings.durability
        self._wait_ms = settings.wait_ms
        self._route = route
        self._exchange = exchange
        self._counts: dict[Address, tuple[float, int]] = {}

    async def needed(self, master: Address) -> int:
        """How many replicas must confirm a write on this master."""
        if self._level == "local":
            return 0
        if self._level == "replicated":
            return 1
        now = asyncio.get_running_loop().time()
        counted_at, count = self._counts.get(master, (float("-inf"), 0))
        if now - counted_at > _COUNT_SECONDS:
            count = await self._count(master)
            self._counts[master] = (now, count)
        return count

    def waiting(self, needed: int) -> list[Command]:
        """The command that follows the script in the same round trip, if one is needed."""
        return [("WAIT", needed, self._wait_ms)] if needed else []

    def check(self, confirmed: Sequence[Any], needed: int) -> None:
        """Raises what WAIT said, if that was not enough."""
        for count in confirmed:
            if isinstance(count, Exception):
                raise count
            if count < needed:
                raise TooFewReplicas(count, needed)

    def forget(self, master: Address) -> None:
        """Counts again before the next write: something has changed there."""
        self._counts.pop(master, None)

    async def _count(self, master: Address) -> int:
        (role,) = await self._exchange(master, [("ROLE",)])
        check_master(role)
        connected = 0 if is_forbidden(role) else len(role[2])
        return max(1, connected, await self._route.promotable(master))
