"""The kit where a PostgreSQL store is not simply the owner's on one server.

Behind pgbouncer, divided into partitions, and used by a role that may do no more than the documentation says.

Every sixteenth case of the kit, since each makes schemas of its own; `make test-all` runs all of them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from holdfast.core.retry import RunPolicy
from holdfast.errors import StoreError
from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.conformance import CASES, Case, run_case
from tests.postgres.rig import Rig
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_shared import shared_durable_postgres
from tests.stores.sampling import sampled

#: A disk that is slow to sync must not make a call repeat itself: the kit would see that its task was there already.
SLOW_DISK = "&deadline=60s"
DOCS = Path(__file__).parents[2] / "docs" / "stores" / "postgres.md"


class Schemas:
    """Some schemas of one database, each a partition; `way` is the URL without its options."""

    persistent = True

    def __init__(self, server: PostgresServer, way: str, partitions: int, options: str = "") -> None:
        self.clock = SteppedClock()
        self._server = server
        self._names = [f"kit_{secrets.token_hex(8)}" for _ in range(partitions)]
        self._url = ",".join(f"{way}?schema={name}{options}{SLOW_DISK}" for name in self._names)

    async def open(self) -> Store:
        return open_store(self._url, clock=self.clock)

    async def destroy(self) -> None:
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            connection.execute("SET client_min_messages = error")
            for name in self._names:
                connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())


def documented_grants(heading: str) -> str:
    """The statements in the SQL block under this heading of the documentation."""
    _, _, section = DOCS.read_text("utf-8").partition(f"\n### {heading}\n")
    return section.partition("```sql\n")[2].partition("```")[0]


class Granted(Schemas):
    """A schema of somebody else's, used by a role with the documented grants."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(server, server.url(), 1)
        [self._schema] = self._names
        self._made = False

    async def open(self) -> Store:
        if not self._made:
            self._made = True
            owner = await super().open()
            await owner.migrate()
            await owner.close()
            grants = documented_grants("Roles of workers").replace("holdfast.", f"{self._schema}.")
            grants = grants.replace("SCHEMA holdfast", f"SCHEMA {self._schema}").replace("worker_role", self._schema)
            with psycopg.connect(self._server.url(), autocommit=True) as connection:
                connection.execute(f"CREATE ROLE {self._schema} LOGIN".encode())
                connection.execute(grants.encode())
        return open_store(self._server.url(user=self._schema, schema=self._schema), clock=self.clock)

    async def destroy(self) -> None:
        await super().destroy()
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            connection.execute(f"DROP ROLE IF EXISTS {self._schema}".encode())


@pytest.fixture(scope="module")
def bouncer() -> Iterator[PgBouncer]:
    with PgBouncer(shared_durable_postgres().heal()) as bouncer:
        yield bouncer


@pytest.mark.parametrize("case", sampled(CASES, 16))
def test_promise_is_kept_behind_pgbouncer(case: Case, bouncer: PgBouncer) -> None:
    server = shared_durable_postgres()
    asyncio.run(run_case(case, lambda: Schemas(server, bouncer.url(), 1, f"&listen={quote(server.url(), safe='')}")))


@pytest.mark.parametrize("case", sampled(CASES, 16, first=5))
def test_promise_is_kept_over_two_partitions(case: Case) -> None:
    server = shared_durable_postgres()
    asyncio.run(run_case(case, lambda: Schemas(server, server.url(), 2)))


@pytest.mark.parametrize("case", sampled(CASES, 16, first=10))
def test_promise_is_kept_for_a_role_with_the_documented_grants(case: Case) -> None:
    server = shared_durable_postgres()
    asyncio.run(run_case(case, lambda: Granted(server)))


def test_producer_with_the_documented_grants_enqueues_and_settles_nothing() -> None:
    server = shared_durable_postgres()
    name = f"producer_{secrets.token_hex(6)}"
    rig = Rig(server.url(schema=name))

    async def run() -> None:
        owner = rig.open()
        await owner.migrate()
        server.query(f"CREATE ROLE {name} LOGIN")
        grants = documented_grants("Roles of producers").replace("holdfast.", f"{name}.")
        server.query(grants.replace("SCHEMA holdfast", f"SCHEMA {name}").replace("producer_role", name))
        store = open_store(server.url(user=name, schema=name), clock=rig.clock)
        tasks = [rig.task(), rig.task(delay_ms=5), rig.task(request_id="r"), rig.task(priority=7)]
        tasks.append(rig.task(policy=RunPolicy(expires_ms=9)))
        assert all(answer.created for answer in await store.enqueue(tasks))
        assert not any(answer.created for answer in await store.enqueue(tasks))
        assert all(task is not None for task in await store.get([task.task_id for task in tasks]))
        await store.wait(["q"], 1)
        with pytest.raises(StoreError, match="permission denied"):
            await rig.claim(store)
        assert len(await rig.claim(owner)) == 4
        await store.close()
        await owner.close()

    try:
        asyncio.run(run())
    finally:
        server.query(f"SET client_min_messages = error; DROP SCHEMA IF EXISTS {name} CASCADE")
        server.query(f"DROP ROLE IF EXISTS {name}")
