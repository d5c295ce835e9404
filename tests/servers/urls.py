"""A fresh store of each kind, as a URL."""

from __future__ import annotations

import secrets
from pathlib import Path

from tests.servers.postgres_shared import shared_durable_postgres
from tests.servers.shared import shared_durable_server

#: The kinds of stores, for tests that hold on each of them.
STORES = ("sqlite", "redis", "postgres")


def fresh_store(kind: str, directory: Path) -> str:
    """The URL of an empty store that no other test uses; its server is running and whole."""
    if kind == "sqlite":
        return f"sqlite:///{directory}/tasks.db"
    if kind == "postgres":
        server = shared_durable_postgres().heal()
        return server.url(server.make_database())
    return f"{shared_durable_server('redis').heal().url}?prefix=test-{secrets.token_hex(6)}"
