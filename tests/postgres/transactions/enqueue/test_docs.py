"""The examples of the page do what it says."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from tests.postgres.transactions.enqueue.sessions import configure_django
from tests.postgres.transactions.enqueue.shop import Shop
from tests.support import ROOT

PAGE = ROOT / "docs" / "stores" / "postgres-transactions.md"
_SECTION = re.compile(r"^## Enqueue a task in your own transaction\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)


def _examples() -> list[str]:
    [section] = _SECTION.findall(PAGE.read_text(encoding="utf-8"))
    return re.findall(r"^```py\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


def _psycopg(url: str) -> dict[str, Any]:
    return {"psycopg": psycopg, "url": url}


def _sqlalchemy(url: str) -> dict[str, Any]:
    from sqlalchemy import create_engine
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
    from sqlalchemy.orm import Mapped, Session, declarative_base, mapped_column
    from sqlalchemy.pool import NullPool

    base: Any = declarative_base()
    columns = {"__annotations__": {"name": Mapped[str]}, "name": mapped_column(primary_key=True)}
    return {
        "Order": type("Order", (base,), {"__tablename__": "orders", **columns}),
        "Session": Session,
        "engine": create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool),
        "AsyncSession": AsyncSession,
        "async_engine": create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"), poolclass=NullPool),
    }


def _django(url: str) -> dict[str, Any]:
    from django.db import connection, models, transaction

    configure_django(url)
    meta = type("Meta", (), {"app_label": "shop", "db_table": "orders"})
    name = models.TextField(primary_key=True)
    book = type("Book", (models.Model,), {"__module__": __name__, "Meta": meta, "name": name})
    return {"connection": connection, "transaction": transaction, "Book": book}


#: What each example takes for granted.
GIVEN = (_psycopg, _sqlalchemy, _sqlalchemy, _django)


@pytest.mark.parametrize("number", range(len(GIVEN)))
def test_example(shop: Shop, number: int) -> None:
    app = Holdfast(shop.url)
    examples = _examples()
    assert len(examples) == len(GIVEN)

    @app.task(name="resize")
    def resize(url: str) -> str:
        return url

    names = {**GIVEN[number](shop.url), "resize": resize}
    code = compile(examples[number], str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    coroutine = eval(code, names)
    if inspect.iscoroutine(coroutine):
        asyncio.run(coroutine)
    if "connection" in names:
        names["connection"].close()
    app.close()
    assert shop.orders() == ["cat"]
    assert shop.query("SELECT count(*) FROM holdfast.tasks") == [(1,)]
