"""What the tests of the schema share: to ask a database, to bring it up to date, and to see all of it."""

from __future__ import annotations

import subprocess
from typing import Any

import psycopg

from holdfast.stores.open import open_store
from holdfast.stores.postgres.text import migrations
from tests.servers.postgres_programs import program

STEPS = [step.name for step in migrations("holdfast")]


def ask(url: str, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    """The rows of one statement, if it gives any."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


def dump(url: str) -> list[str]:
    """The whole schema as text, without what differs from run to run."""
    command = [str(program("pg_dump")), "--schema-only", "--no-owner", url]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [line for line in text.splitlines() if not line.startswith(("\\restrict", "\\unrestrict"))]


async def migrate(url: str) -> list[str]:
    """The steps that a store of today takes there."""
    store = open_store(url)
    try:
        return await store.migrate()
    finally:
        await store.close()
