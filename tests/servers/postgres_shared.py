"""PostgreSQL servers that many tests share: each starts when first asked for, and ends with the process."""

from __future__ import annotations

from functools import cache

from tests.servers.postgres import PostgresServer
from tests.servers.postgres_programs import DURABLE, FAST


@cache
def shared_postgres() -> PostgresServer:
    """A server that does not wait for the disk, for the kit and everything that wants to be fast."""
    return PostgresServer(profile=FAST).__enter__()


@cache
def shared_durable_postgres() -> PostgresServer:
    """A server where everything that was committed is on disk."""
    return PostgresServer(profile=DURABLE).__enter__()
