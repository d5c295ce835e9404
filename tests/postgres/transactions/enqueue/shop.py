"""The application of these tests: orders, and a task for each of them."""

from __future__ import annotations

from typing import Any

import psycopg

from holdfast import Holdfast
from holdfast.producer.task_type import TaskType


def make_app(url: str) -> Holdfast:
    """An app with one task type."""
    app = Holdfast(url)

    @app.task(name="ship")
    def ship(order: str) -> str:
        return f"shipped {order}"

    return app


class Shop:
    """The app, and what is in the database."""

    def __init__(self, app: Holdfast, url: str) -> None:
        self.app = app
        self.url = url
        self.ship: TaskType[..., Any] = app.task_types["ship"]

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def orders(self) -> list[str]:
        """The rows that are there, sorted."""
        return sorted(name for (name,) in self.query("SELECT name FROM orders"))

    def tasks(self, schema: str = "holdfast") -> list[str]:
        """The orders that tasks stand for, sorted; none if there is no store."""
        if self.query(f"SELECT to_regclass('{schema}.tasks')") == [(None,)]:
            return []
        payloads = self.query(f"SELECT convert_from(payload, 'UTF8')::json ->> 'order' FROM {schema}.tasks")
        return sorted(order for (order,) in payloads)
