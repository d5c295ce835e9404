"""What only a database can do, and so no part of the contract: tasks recorded by a transaction of the caller's."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from holdfast.core.task import Enqueued, NewTask
from holdfast.errors import BadOption
from holdfast.stores.contract import Store

T = TypeVar("T")


class Transaction(Protocol):
    """A connection or session that commits: of psycopg, SQLAlchemy 2 or Django, sync or async."""

    def commit(self) -> Any:
        """Makes the writes last."""
        ...

    def rollback(self) -> Any:
        """Takes the writes back."""
        ...


class Background(Protocol):
    """An event loop in a thread of its own, for sync callers."""

    def run(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """The coroutine's result."""
        ...

    def start(self, coroutine: Coroutine[Any, Any, T], /) -> Future[T]:
        """Has the coroutine run."""
        ...


class Within(Protocol):
    """Records tasks in transactions of the caller's: they are there if it commits, and never if it does not."""

    def enqueue(self, transaction: Transaction, tasks: Sequence[NewTask], background: Background) -> list[Enqueued]:
        """As `Store.enqueue`, but for the commit, which is the caller's; never tried twice."""
        ...

    async def aenqueue(
        self, transaction: Transaction, tasks: Sequence[NewTask], background: Background
    ) -> list[Enqueued]:
        """The same in an async transaction."""
        ...


def within(store: Store) -> Within:
    """The store's way to record tasks in a transaction of the caller's; `BadOption` if it has none."""
    found: Within | None = getattr(store, "within", None)
    if found is None:
        raise BadOption(
            f"transaction: {store.url} cannot take part in your transactions, only a store that is one PostgreSQL "
            "database can; leave transaction out, and enqueue after your commit"
        )
    return found
