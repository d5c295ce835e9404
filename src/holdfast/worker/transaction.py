"""A block in which a task writes to the store's own database and is finished by the same commit.

The store decides at the end of the block, by the claim: the writes are committed together with the success of the task,
or not at all. After that nothing is left to settle, and nothing that the function still does can change it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, cast

from holdfast.clock import SystemClock
from holdfast.core.ids import partition_of
from holdfast.core.outcomes import Cancel, Snooze
from holdfast.errors import ClaimLost, TimedOut, UsageError
from holdfast.stores.contract import Store
from holdfast.worker.run import Run, Workplace
from holdfast.worker.seals import encoded_result
from holdfast.worker.waiting import in_a_loop, to_the_end

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

_log = logging.getLogger("holdfast.worker")

_NOTHING = b"null"


class Completion(Protocol):
    """The store's part of such a block."""

    async def begin(self, *, threaded: bool) -> Any:
        """A connection in a new transaction, for the running event loop or for a thread."""
        ...

    async def finish(self, result: bytes, may_ask: Callable[[], bool]) -> None:
        """Acks the claim and commits; raises if nothing was committed, or if nobody could find out."""
        ...

    async def abandon(self, *, at_once: bool) -> None:
        """Rolls back."""
        ...


class _Phase(Enum):
    NEW = "new"
    OPEN = "open"
    ENDING = "ending"
    ROLLED_BACK = "rolled back"
    COMMITTED = "committed"


class Transaction:
    """The block: `async with` in coroutines, `with` in threads."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._phase = _Phase.NEW
        self._completion: Completion | None = None
        self.result = _NOTHING

    @property
    def is_open(self) -> bool:
        """Whether the task is inside the block."""
        return self._phase is _Phase.OPEN

    @property
    def decides(self) -> bool:
        """Whether the claim is being ended by the commit, or was: its loss is no news then."""
        return self._phase in {_Phase.ENDING, _Phase.COMMITTED}

    @property
    def committed(self) -> bool:
        """Whether the task has succeeded with it."""
        return self._phase is _Phase.COMMITTED

    # -- one logic, two ways to wait ------------------------------------------------------------------------

    async def __aenter__(self) -> AsyncConnection[tuple[Any, ...]]:
        return cast("AsyncConnection[tuple[Any, ...]]", await self._begin(threaded=False))

    async def __aexit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if error is None:
            await to_the_end(self._finish())
        else:
            await self._abandon(error)

    def __enter__(self) -> Connection[tuple[Any, ...]]:
        if in_a_loop():
            raise UsageError("transaction(): this is an event loop; write: async with current().transaction() as conn:")
        try:
            return cast("Connection[tuple[Any, ...]]", self._workplace().waited(self._begin(threaded=True)))
        except BaseException as error:
            self.leave(error)  # interrupted after it had begun, when nobody else would end it
            raise

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._workplace().waited(self._finish() if error is None else self._abandon(error))

    def leave(self, error: BaseException | None = None) -> None:
        """Rolls back if the block is open, in a thread that was interrupted before it could leave it."""
        if self.is_open:
            self._workplace().waited(self._abandon(error))

    # -- the steps ------------------------------------------------------------------------------------------

    async def _begin(self, *, threaded: bool) -> Any:
        self._refuse_a_second()
        workplace, task = self._workplace(), self._run.task
        self._completion = _completion(workplace.store, task.task_id, task.token, workplace.lease_ms)
        self._run.transaction = self
        self._phase = _Phase.OPEN
        try:
            return await self._completion.begin(threaded=threaded)
        except BaseException:
            self._phase = _Phase.ROLLED_BACK
            raise

    async def _finish(self) -> None:
        self._phase = _Phase.ENDING
        try:
            await self._opened().finish(self.result, self._may_still_be_ours)
        except BaseException:
            self._phase = _Phase.ROLLED_BACK
            raise
        self._phase = _Phase.COMMITTED

    async def _abandon(self, error: BaseException | None) -> None:
        self._phase = _Phase.ROLLED_BACK
        # Who was cancelled may be cancelled again, and must not wait; a thread may have been in the middle of a query.
        interrupted = self._run.ending is not None or isinstance(error, asyncio.CancelledError)
        await self._opened().abandon(at_once=interrupted)

    def _opened(self) -> Completion:
        if self._completion is None:
            raise UsageError("transaction(): the block was never entered")
        return self._completion

    def _may_still_be_ours(self) -> bool:
        return SystemClock().monotonic_ms() < self._run.deadline_ms

    def _workplace(self) -> Workplace:
        return self._run.at_work("transaction()")

    # -- what is refused ------------------------------------------------------------------------------------

    def _refuse_a_second(self) -> None:
        other = self._run.transaction
        if other is not None and (other.is_open or other.decides):
            done = "has finished the task already" if other.committed else "is still open"
            raise UsageError(
                f"transaction(): a block of this run {done}; there is one for each run, do it all in that one"
            )
        if self._phase is not _Phase.NEW:
            raise UsageError("transaction(): a block is entered once; call current().transaction() again")


def set_result(run: Run, value: Any) -> None:
    """The result that is stored when the open block of this run commits."""
    if run.transaction is None or not run.transaction.is_open:
        raise UsageError("set_result() is for the inside of a transaction() block; elsewhere, return the result")
    run.transaction.result = encoded_result(run, value)


def note_return(run: Run, transaction: Transaction, value: Any) -> None:
    """After the commit: says so if what the function returns comes too late."""
    if value is None:
        return
    if isinstance(value, (Snooze, Cancel)):
        note_error(run, value)
    elif encoded_result(run, value) != transaction.result:
        _log.warning(
            "task %s: succeeded with its transaction; what it returned after that is not stored, set_result() in the "
            "block would have been",
            run.task.task_id,
        )


def note_error(run: Run, error: BaseException) -> None:
    """After the commit: says that an error changes nothing any more."""
    if isinstance(error, (asyncio.CancelledError, TimedOut, ClaimLost)) and run.ending is not None:
        return
    _log.warning(
        "task %s: succeeded with its transaction; what came after that changes nothing: %s: %s",
        run.task.task_id,
        type(error).__name__,
        error,
        exc_info=error if error.__traceback__ else None,
    )


def _completion(store: Store, task_id: str, token: str, rest_ms: int) -> Completion:
    """The block in the database where the task is."""
    partitions = store.partitions()
    own = partitions[partition_of(task_id)] if len(partitions) > 1 else store
    make = getattr(own, "completion", None)
    if make is None:
        engine = store.url.partition("://")[0]
        raise UsageError(
            f"transaction(): only PostgreSQL commits a task's writes together with its end, this store is {engine}; "
            "use current().once() here"
        )
    return cast("Completion", make(task_id, token, rest_ms))
