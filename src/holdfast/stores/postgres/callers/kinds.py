"""What we need of a transaction of somebody else's."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from holdfast.errors import BadOption

Row = tuple[Any, ...]

#: All drivers know a text, and send it as such if they are told what it is.
_STATEMENT: Final = "SELECT * FROM {function}(CAST({mark} AS text))"


class Ring(Hashable, Protocol):
    """Rings, sooner or later; never blocks and never fails."""

    def __call__(self, *, delay_s: float = 0) -> None:
        """Rings now, or in a while."""
        ...


class Caller(Protocol):
    """A sync transaction."""

    def ask(self, function: str, text: str) -> Sequence[Row]:
        """The rows of a function that takes one text; what the driver raises is raised as it is."""
        ...

    def after_commit(self, ring: Ring) -> None:
        """Has this called when the transaction has been committed, if the library has a way to tell."""
        ...


@runtime_checkable
class AsyncCaller(Protocol):
    """An async transaction."""

    async def aask(self, function: str, text: str) -> Sequence[Row]:
        """The rows of a function that takes one text; what the driver raises is raised as it is."""
        ...

    def after_commit(self, ring: Ring) -> None:
        """Has this called when the transaction has been committed, if the library has a way to tell."""
        ...


def statement(function: str, mark: str) -> str:
    """The statement, in the paramstyle of a driver."""
    return _STATEMENT.format(function=function, mark=mark)


def no_transaction(what: str, advice: str) -> BadOption:
    """The refusal of a connection that would commit each statement by itself."""
    return BadOption(f"transaction: {what} is in autocommit mode, with no transaction to join; {advice}")


def no_postgres(kind: str) -> BadOption:
    """The refusal of a session of another kind of database."""
    return BadOption(
        f"transaction: it is one of a {kind} database, and the store is in PostgreSQL; use a session of that"
    )
