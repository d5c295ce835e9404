"""The kit over HTTP, on every store: some of the cases in `make test`, all of them in `make test-all`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from holdfast.stores.sharded.store import ShardedStore
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.conformance import CASES, Case, run_case
from holdfast.testing.kit.harness import SqliteHarness, StoreHarness
from tests.postgres.harness import postgres_harness
from tests.remote.harness import RemoteHarness
from tests.servers.harness import server_harness
from tests.servers.postgres_shared import shared_durable_postgres
from tests.servers.shared import shared_durable_server
from tests.stores.sampling import on_each, sampled


class TwoFiles:
    """A store over two SQLite files."""

    persistent = True

    def __init__(self, directory: Path) -> None:
        self.clock = SteppedClock()
        self._url = ",".join(f"sqlite:///{directory / name}" for name in ("a.db", "b.db"))

    async def open(self) -> Store:
        return open_store(self._url, clock=self.clock)

    async def destroy(self) -> None:
        """The directory goes by itself."""


class TwoServers:
    """A store over two servers, each of them before a SQLite file."""

    persistent = True

    def __init__(self, directory: Path) -> None:
        folders = [directory / name for name in ("a", "b")]
        for folder in folders:
            folder.mkdir()
        inner = [SqliteHarness(folder) for folder in folders]
        self.clock = inner[0].clock
        for harness in inner:
            harness.clock = self.clock
        self._parts = [RemoteHarness(harness) for harness in inner]

    async def open(self) -> Store:
        return ShardedStore([await part.open() for part in self._parts])

    async def destroy(self) -> None:
        for part in self._parts:
            await part.destroy()


ELSEWHERE: dict[str, Callable[[Path], StoreHarness]] = {
    "redis": lambda _: RemoteHarness(server_harness(shared_durable_server("redis"))),
    "postgres": lambda _: RemoteHarness(postgres_harness(shared_durable_postgres())),
    "two-files": lambda directory: RemoteHarness(TwoFiles(directory)),
    "two-servers": TwoServers,
}


@pytest.mark.parametrize("case", sampled(CASES, 4))
def test_promise_is_kept_behind_a_server(case: Case, tmp_path: Path) -> None:
    asyncio.run(run_case(case, lambda: RemoteHarness(SqliteHarness(tmp_path))))


@pytest.mark.parametrize(("harness", "case"), on_each(ELSEWHERE, CASES, every=16))
def test_promise_is_kept_behind_a_server_elsewhere(harness: str, case: Case, tmp_path: Path) -> None:
    asyncio.run(run_case(case, lambda: ELSEWHERE[harness](tmp_path)))
