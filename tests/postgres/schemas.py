"""What the tests of the schema share: to ask a database, and to bring it up to date."""

from __future__ import annotations

from typing import Any

import psycopg

from holdfast.stores.open import open_store
from holdfast.stores.postgres.migrate import TABLES_STEP

STEPS = [TABLES_STEP]


def ask(url: str, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    """The rows of one statement, if it gives any."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


async def migrate(url: str) -> list[str]:
    """The steps that a store of today takes there."""
    store = open_store(url)
    try:
        return await store.migrate()
    finally:
        await store.close()
