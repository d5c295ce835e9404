"""Every kind of session that tasks can be recorded in, with one sync face: the async ones have a loop of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import psycopg

from holdfast import Holdfast, TaskHandle
from holdfast.producer.enqueue import Prepared
from holdfast.producer.task_type import TaskType


class Writer(Protocol):
    """One session of an application."""

    #: What the application hands over.
    transaction: Any

    def execute(self, statement: str) -> None: ...

    def enqueue(self, task: TaskType[..., Any], *values: Any) -> TaskHandle[Any]: ...

    def enqueue_many(self, app: Holdfast, calls: Iterable[Prepared[Any]]) -> list[TaskHandle[Any]]: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def savepoint(self) -> None: ...

    def release(self) -> None: ...

    def undo(self) -> None: ...

    def close(self) -> None: ...


class _Sync:
    transaction: Any

    def enqueue(self, task: TaskType[..., Any], *values: Any) -> TaskHandle[Any]:
        return task.using(transaction=self.transaction).enqueue(*values)

    def enqueue_many(self, app: Holdfast, calls: Iterable[Prepared[Any]]) -> list[TaskHandle[Any]]:
        return app.enqueue_many(calls)

    def commit(self) -> None:
        self.transaction.commit()

    def rollback(self) -> None:
        self.transaction.rollback()

    def close(self) -> None:
        self.transaction.close()


class _Async:
    transaction: Any

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, call: Callable[[], Any]) -> Any:
        async def called() -> Any:
            return await call()

        return self._runner.run(called())

    def enqueue(self, task: TaskType[..., Any], *values: Any) -> TaskHandle[Any]:
        handle: TaskHandle[Any] = self.run(lambda: task.using(transaction=self.transaction).aenqueue(*values))
        return handle

    def enqueue_many(self, app: Holdfast, calls: Iterable[Prepared[Any]]) -> list[TaskHandle[Any]]:
        handles: list[TaskHandle[Any]] = self.run(lambda: app.aenqueue_many(calls))
        return handles

    def commit(self) -> None:
        self.run(self.transaction.commit)

    def rollback(self) -> None:
        self.run(self.transaction.rollback)

    def close(self) -> None:
        self.run(self.transaction.close)
        self._runner.close()


class _Savepoints:
    """As SQL, for libraries that have no other way to end them in any order."""

    def execute(self, statement: str) -> None:
        raise NotImplementedError

    def savepoint(self) -> None:
        self.execute("SAVEPOINT here")

    def release(self) -> None:
        self.execute("RELEASE SAVEPOINT here")

    def undo(self) -> None:
        self.execute("ROLLBACK TO SAVEPOINT here")


class Psycopg(_Savepoints, _Sync):
    def __init__(self, url: str) -> None:
        self.transaction = psycopg.connect(url)

    def execute(self, statement: str) -> None:
        self.transaction.execute(statement)


class AsyncPsycopg(_Savepoints, _Async):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.transaction = self.run(lambda: psycopg.AsyncConnection.connect(url))

    def execute(self, statement: str) -> None:
        self.run(lambda: self.transaction.execute(statement))


class SqlAlchemy(_Sync):
    """A session, or a bare connection."""

    def __init__(self, url: str, *, session: bool) -> None:
        from sqlalchemy import create_engine
        from sqlalchemy.orm import Session

        self._engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        self.transaction = Session(self._engine) if session else self._engine.connect()
        self._nested: Any = None

    def execute(self, statement: str) -> None:
        from sqlalchemy import text

        self.transaction.execute(text(statement))

    def savepoint(self) -> None:
        self._nested = self.transaction.begin_nested()

    def release(self) -> None:
        self._nested.commit()

    def undo(self) -> None:
        self._nested.rollback()

    def close(self) -> None:
        super().close()
        self._engine.dispose()


class AsyncSqlAlchemy(_Async):
    """A session, or a bare connection, of a driver."""

    def __init__(self, url: str, *, session: bool, driver: str) -> None:
        super().__init__()
        from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

        self._engine = create_async_engine(url.replace("postgresql:", f"postgresql+{driver}:"))
        self.transaction = AsyncSession(self._engine) if session else self.run(lambda: self._engine.connect().start())
        self._nested: Any = None

    def execute(self, statement: str) -> None:
        from sqlalchemy import text

        self.run(lambda: self.transaction.execute(text(statement)))

    def savepoint(self) -> None:
        async def begin() -> Any:
            return await self.transaction.begin_nested()

        self._nested = self.run(begin)

    def release(self) -> None:
        self.run(self._nested.commit)

    def undo(self) -> None:
        self.run(self._nested.rollback)

    def close(self) -> None:
        self.run(self.transaction.close)
        self.run(self._engine.dispose)
        self._runner.close()


class Django(_Sync):
    """The default connection, or one of another name."""

    def __init__(self, url: str, alias: str = "default") -> None:
        from django.db import connection, connections, transaction

        configure_django(url, alias)
        self._alias = alias
        self._library = transaction
        self._blocks: list[Any] = []
        self.transaction = connection if alias == "default" else connections[alias]

    def _begin(self) -> None:
        if not self._blocks:
            self._enter()

    def execute(self, statement: str) -> None:
        self._begin()
        with self.transaction.cursor() as cursor:
            cursor.execute(statement)

    def enqueue(self, task: TaskType[..., Any], *values: Any) -> TaskHandle[Any]:
        self._begin()
        return super().enqueue(task, *values)

    def enqueue_many(self, app: Holdfast, calls: Iterable[Prepared[Any]]) -> list[TaskHandle[Any]]:
        self._begin()
        return super().enqueue_many(app, calls)

    def commit(self) -> None:
        while self._blocks:
            self.release()

    def rollback(self) -> None:
        while self._blocks:
            self.undo()

    def savepoint(self) -> None:
        self._begin()
        self._enter()

    def _enter(self) -> None:
        block = self._library.atomic(using=self._alias)
        block.__enter__()
        self._blocks.append(block)

    def release(self) -> None:
        self._blocks.pop().__exit__(None, None, None)

    def undo(self) -> None:
        self._blocks.pop().__exit__(ValueError, ValueError("undone"), None)

    def close(self) -> None:
        self.rollback()
        self.transaction.close()


def configure_django(url: str, alias: str = "default", **options: Any) -> None:
    """Has this name stand for this database in this thread."""
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(LOGGING_CONFIG=None)
        django.setup()
    parts = urlsplit(url)
    place = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname,
        "PORT": parts.port,
        **options,
    }
    connections.databases[alias] = connections.configure_settings({"default": {}, alias: place})[alias]
    if hasattr(connections._connections, alias):
        connections[alias].close()
        del connections[alias]


KINDS: dict[str, Callable[[str], Writer]] = {
    "psycopg": Psycopg,
    "psycopg async": AsyncPsycopg,
    "sqlalchemy session": lambda url: SqlAlchemy(url, session=True),
    "sqlalchemy connection": lambda url: SqlAlchemy(url, session=False),
    "sqlalchemy async session": lambda url: AsyncSqlAlchemy(url, session=True, driver="asyncpg"),
    "sqlalchemy async connection": lambda url: AsyncSqlAlchemy(url, session=False, driver="asyncpg"),
    "sqlalchemy async session of psycopg": lambda url: AsyncSqlAlchemy(url, session=True, driver="psycopg"),
    "django": Django,
    "django connections[…]": lambda url: Django(url, alias="other"),
}


@contextmanager
def opened(kind: str, url: str) -> Iterator[Writer]:
    """A session of this kind."""
    writer = KINDS[kind](url)
    try:
        yield writer
    finally:
        writer.close()
