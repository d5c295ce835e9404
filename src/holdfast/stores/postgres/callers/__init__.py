"""Transactions of others: the type tells whose they are, and no library is imported that the caller does not use."""

from __future__ import annotations

from typing import Any

from holdfast.errors import BadOption
from holdfast.stores.postgres.callers.kinds import AsyncCaller, Caller


def caller_of(transaction: Any) -> Caller | AsyncCaller:
    """The way into this transaction; `BadOption` if it is none that we know."""
    found: Caller | AsyncCaller | None = None
    families = {each.__module__.partition(".")[0] for each in type(transaction).__mro__}
    if "psycopg" in families:
        from holdfast.stores.postgres.callers.of_psycopg import psycopg_caller

        found = psycopg_caller(transaction)
    elif "sqlalchemy" in families:
        from holdfast.stores.postgres.callers.of_sqlalchemy import sqlalchemy_caller

        found = sqlalchemy_caller(transaction)
    elif "django" in families:
        from holdfast.stores.postgres.callers.of_django import django_caller

        found = django_caller(transaction)
    if found is None:
        raise BadOption(
            f"transaction: {_shown(transaction)} is not one; give a connection of psycopg, a connection or session of "
            "SQLAlchemy 2, or django.db.connection"
        )
    return found


def _shown(value: Any) -> str:
    kind = type(value)
    return repr(value)[:40] if kind.__module__ == "builtins" else f"an object of {kind.__module__}.{kind.__qualname__}"
