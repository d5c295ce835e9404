"""From a PostgreSQL URL to a store."""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.errors import BadUrl
from holdfast.stores.contract import Store


def open_postgres(url: str, clock: Clock) -> Store:
    """The store in the database of this URL; nothing is connected to before the first call."""
    try:
        from holdfast.stores.postgres.database import open_database
        from holdfast.stores.postgres.store import PostgresStore
        from holdfast.stores.postgres.urls import parse_postgres_url
    except ImportError as missing:
        # Also raised by psycopg itself, when it finds no libpq to work with.
        if missing.name is not None and not missing.name.startswith("psycopg"):
            raise
        raise BadUrl("postgresql:// needs the psycopg package; run: pip install 'holdfast[postgres]'") from None
    return PostgresStore(open_database(parse_postgres_url(url)), clock=clock)
