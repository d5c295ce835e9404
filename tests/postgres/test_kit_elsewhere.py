"""The kit where a PostgreSQL store is not simply on one server: behind pgbouncer, and divided into partitions.

Every so-manieth case of the kit, since each makes schemas of its own; `KIT_EVERY=1` runs all of them, in four minutes.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from urllib.parse import quote

import psycopg
import pytest

from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.conformance import CASES, Case, run_case
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_shared import shared_durable_postgres

SOME_CASES = CASES[:: int(os.environ.get("KIT_EVERY", "8"))]


class Schemas:
    """Some schemas of one database, each a partition; `way` is the URL without its options."""

    persistent = True

    def __init__(self, server: PostgresServer, way: str, partitions: int, options: str = "") -> None:
        self.clock = SteppedClock()
        self._server = server
        self._names = [f"kit_{secrets.token_hex(8)}" for _ in range(partitions)]
        self._url = ",".join(f"{way}?schema={name}{options}" for name in self._names)

    async def open(self) -> Store:
        return open_store(self._url, clock=self.clock)

    async def destroy(self) -> None:
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            connection.execute("SET client_min_messages = error")
            for name in self._names:
                connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())


@pytest.fixture(scope="module")
def bouncer() -> Iterator[PgBouncer]:
    with PgBouncer(shared_durable_postgres().heal()) as bouncer:
        yield bouncer


@pytest.mark.parametrize("case", SOME_CASES, ids=str)
def test_promise_is_kept_behind_pgbouncer(case: Case, bouncer: PgBouncer) -> None:
    server = shared_durable_postgres()
    asyncio.run(run_case(case, lambda: Schemas(server, bouncer.url(), 1, f"&listen={quote(server.url(), safe='')}")))


@pytest.mark.parametrize("case", SOME_CASES, ids=str)
def test_promise_is_kept_over_two_partitions(case: Case) -> None:
    server = shared_durable_postgres()
    asyncio.run(run_case(case, lambda: Schemas(server, server.url(), 2)))
