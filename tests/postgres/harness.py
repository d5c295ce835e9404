"""The kit's hold on a store on a PostgreSQL server."""

from __future__ import annotations

import secrets

import psycopg
from psycopg import sql

from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock
from tests.servers.postgres import PostgresServer


class PostgresHarness:
    """A schema of its own in a shared database."""

    persistent = True

    def __init__(self, url: str) -> None:
        self.clock = SteppedClock()
        self._url = url
        self._schema = f"kit_{secrets.token_hex(8)}"

    async def open(self) -> Store:
        """A store in this schema."""
        return open_store(f"{self._url}?schema={self._schema}", clock=self.clock)

    async def destroy(self) -> None:
        """Drops the schema."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("SET client_min_messages = error")
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(self._schema)))


def postgres_harness(server: PostgresServer) -> PostgresHarness:
    """On this server, which runs even if the last test left it dead."""
    if not server.running:
        server.heal()
    return PostgresHarness(server.url())
