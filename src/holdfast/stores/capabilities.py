"""What some engines can do beside the contract, asked for by name: `store.capabilities.within`.

A store that wraps another one passes these on, except for those that would go around what it adds.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from holdfast.core.task import Enqueued, NewTask
from holdfast.errors import BadOption, StoreUnavailable

if TYPE_CHECKING:
    from holdfast.stores.contract import Store

T = TypeVar("T")


class EnqueueNow(Protocol):
    """One try at `Store.enqueue` in the thread of a sync caller, which saves it the way to an event loop and back."""

    def __call__(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued] | None:
        """As `Store.enqueue`, or None if anything at all is out of the ordinary.

        What has become of the tasks is not known then: the caller enqueues them again, the same tasks with the same
        ids, by `Store.enqueue`.
        """
        ...


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

    def start(self, coroutine: Coroutine[Any, Any, T], /) -> object:
        """Has the coroutine run."""
        ...


class Within(Protocol):
    """Enqueues tasks in the caller's transaction: they exist if it commits, and never if it does not."""

    def enqueue(self, transaction: Transaction, tasks: Sequence[NewTask], background: Background) -> list[Enqueued]:
        """As `Store.enqueue`, but for the commit, which is the caller's; never tried twice."""
        ...

    async def aenqueue(
        self, transaction: Transaction, tasks: Sequence[NewTask], background: Background
    ) -> list[Enqueued]:
        """The same in an async transaction."""
        ...


class Completion(Protocol):
    """Makes the block in which a task's own writes and its completion are one transaction."""

    def __call__(self, task_id: str, token: str, rest_ms: int) -> Any:
        """The block for this claim; see `holdfast.worker.transaction`."""
        ...


class PartialView(NamedTuple):
    """A store for people who want to see the rest, and a record of what it has left out."""

    #: `find`, `counts`, `workers`, and lists of documents are answered, and settings of queues written, without the
    #: partitions that do not answer. All else, which may be a step of a decision, is answered whole or not at all.
    store: Store
    #: Why each partition was left out, by its number; the calls of `store` fill it.
    left_out: dict[int, StoreUnavailable]


class InPart(Protocol):
    """Gives a view of the store that does without the partitions that do not answer."""

    def __call__(self, *, until_deadline: bool = False) -> PartialView:
        """A new view. With `until_deadline` it waits for a partition as long as any other call, and knows the cause."""
        ...


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """None: this store cannot do it."""

    enqueue_now: EnqueueNow | None = None
    within: Within | None = None
    completion: Completion | None = None
    in_part: InPart | None = None


NO_CAPABILITIES: Final = Capabilities()


def within(capabilities: Capabilities, url: str) -> Within:
    """The store's way to enqueue tasks in the caller's transaction; `BadOption` if it has none."""
    if capabilities.within is None:
        raise BadOption(
            f"transaction: {url} cannot take part in your transactions, only a store that is one PostgreSQL "
            "database can; leave transaction out, and enqueue after your commit"
        )
    return capabilities.within


def in_part(store: Store, *, until_deadline: bool = False) -> PartialView:
    """A view without the partitions that do not answer; of a store that cannot do without any, the store itself."""
    view = store.capabilities.in_part
    return PartialView(store, {}) if view is None else view(until_deadline=until_deadline)
