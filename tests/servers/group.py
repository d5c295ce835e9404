"""Several servers that live and end together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from tests.servers.redis_server import RedisServer
from tests.support import eventually

T = TypeVar("T")


class ServerGroup(ABC):
    """Servers under one roof; as a context manager, all start and all end, and a failure shows their logs."""

    @property
    @abstractmethod
    def servers(self) -> Sequence[RedisServer]:
        """All of them."""

    @abstractmethod
    def start(self) -> Self:
        """Starts them and makes them one; returns when they are ready for clients."""

    @abstractmethod
    def wait_until_whole(self, timeout: float = 30.0) -> Self:
        """Returns when all are there, agree, and replicate."""

    def heal(self, timeout: float = 60.0) -> Self:
        """Whatever a test did to them, all run and are one again."""
        for server in self.servers:
            server.heal()
        return self.wait_until_whole(timeout)

    def end(self) -> None:
        """Nothing is left of any of them."""
        for server in self.servers:
            server.end()

    def waited(self, condition: Callable[[], T], timeout: float, what: str) -> T:
        """The first truthy value of the condition; a failure shows what the servers wrote."""
        try:
            return eventually(condition, timeout, what)
        except AssertionError as error:
            error.add_note(self.log())
            raise

    def log(self) -> str:
        """What each of them wrote last."""
        return "\n".join(f"--- {server}\n{server.log()}" for server in self.servers)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException as error:
            error.add_note(self.log())
            self.end()
            raise

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.log())
        self.end()


def start_together(servers: Sequence[RedisServer]) -> None:
    """Starts all at once, then waits for each."""
    for server in servers:
        server.launch()
    for server in servers:
        server.wait_until_ready()


def replicates(replica: RedisServer) -> bool:
    """Whether this replica has its master's data and gets what comes."""
    return replica.info("replication").get("master_link_status") == "up"


def has_replicas(master: RedisServer, number: int) -> bool:
    """Whether this master feeds so many replicas, and would accept a write."""
    info = master.info("replication")
    lines = [value for name, value in info.items() if name.startswith("slave") and "state=online" in value]
    needed = int(info.get("min_slaves_good_slaves", number))
    return info["role"] == "master" and len(lines) >= number and needed >= min(number, 1)
