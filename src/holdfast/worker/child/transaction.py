"""A block in which a task writes to the store's own database and is finished by the same commit.

The store decides at the end of the block, by the claim: the writes are committed together with the success of the task,
or not at all. After that nothing is left to settle, and nothing that the function still does can change it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, cast

from holdfast.core.task import OUTCOMES
from holdfast.errors import ClaimLost, TimedOut, UsageError
from holdfast.stores.contract import Store
from holdfast.worker.child.interrupt import in_a_loop, to_the_end
from holdfast.worker.child.run import Run, RunContext, TransactionPhase, TransactionState, encoded_result

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection


_log = logging.getLogger("holdfast.worker")


class StoreCompletion(Protocol):
    """The store's part of such a block."""

    async def begin(self, *, threaded: bool) -> Any:
        """A connection in a new transaction, for the running event loop or for a thread."""
        ...

    async def finish(self, result: bytes, may_ask: Callable[[], bool]) -> None:
        """Acks the claim and commits; raises if nothing was committed, or if that is not known."""
        ...

    async def abandon(self, *, at_once: bool) -> None:
        """Rolls back."""
        ...


class RunTransaction:
    """The block: `async with` in coroutines, `with` in threads."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._state = TransactionState()

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
            return cast("Connection[tuple[Any, ...]]", self._context().wait_for(self._begin(threaded=True)))
        except BaseException as error:
            if self._state.is_open:  # interrupted after it had begun: nothing else would end it
                self._context().wait_for(self._abandon(error))
            raise

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._context().wait_for(self._finish() if error is None else self._abandon(error))

    # -- the steps ------------------------------------------------------------------------------------------

    async def _begin(self, *, threaded: bool) -> Any:
        self._refuse_a_second()
        context, task, state = self._context(), self._run.task, self._state
        state.completion = completion = _completion(context.store, task.task_id, task.token, context.lease_ms)
        self._run.transaction = state
        state.phase = TransactionPhase.OPEN
        try:
            return await completion.begin(threaded=threaded)
        except BaseException:
            state.phase = TransactionPhase.ROLLED_BACK
            raise

    async def _finish(self) -> None:
        state = self._state
        state.phase = TransactionPhase.ENDING
        try:
            if state.result is None:
                state.result = encoded_result(self._run, None)
            await _opened(state).finish(state.result, self._may_still_be_ours)
        except BaseException:
            state.phase = TransactionPhase.ROLLED_BACK
            raise
        state.phase = TransactionPhase.COMMITTED

    async def _abandon(self, error: BaseException | None) -> None:
        await _abandon(self._run, self._state, error)

    def _may_still_be_ours(self) -> bool:
        return self._run.clock.monotonic_ms() < self._run.deadline_ms

    def _context(self) -> RunContext:
        context = self._run.require_context("transaction()")
        if context.forked:
            raise UsageError("transaction(): this process was forked by the task; write in the process that runs it")
        return context

    # -- what is refused ------------------------------------------------------------------------------------

    def _refuse_a_second(self) -> None:
        other = self._run.transaction
        if other is not None and (other.is_open or other.decides):
            done = "has finished the task already" if other.committed else "is still open"
            raise UsageError(
                f"transaction(): a block of this run {done}; there is one for each run, do it all in that one"
            )
        if self._state.phase is not TransactionPhase.NEW:
            raise UsageError("transaction(): a block is entered once; call current().transaction() again")


def leave_open_block(run: Run) -> None:
    """Rolls back the open block of a thread that was interrupted before it could leave it."""
    if run.transaction is not None and run.transaction.is_open:
        run.require_context("transaction()").wait_for(_abandon(run, run.transaction, None))


async def _abandon(run: Run, state: TransactionState, error: BaseException | None) -> None:
    state.phase = TransactionPhase.ROLLED_BACK
    # A cancelled run may be cancelled again, and must not wait; a thread may have been in the middle of a query.
    interrupted = run.ending is not None or isinstance(error, asyncio.CancelledError)
    await _opened(state).abandon(at_once=interrupted)


def _opened(state: TransactionState) -> StoreCompletion:
    if state.completion is None:
        raise UsageError("transaction(): the block was never entered")
    return cast("StoreCompletion", state.completion)


def set_result(run: Run, value: Any) -> None:
    """The result that is stored when the open block of this run commits."""
    if run.transaction is None or not run.transaction.is_open:
        raise UsageError("set_result() is for the inside of a transaction() block; elsewhere, return the result")
    run.transaction.result = encoded_result(run, value)


def note_return(run: Run, stored: bytes | None, value: Any) -> None:
    """After the commit: warns if the function returns another result than the stored one."""
    if value is None:
        return
    if isinstance(value, OUTCOMES):
        note_error(run, value)
    elif encoded_result(run, value) != stored:
        _log.warning(
            "task %s: succeeded with its transaction; what it returned after that is not stored, set_result() in the "
            "block would have been",
            run.task.task_id,
        )


def note_error(run: Run, error: BaseException) -> None:
    """After the commit: warns that an error changes nothing any more."""
    if isinstance(error, (asyncio.CancelledError, TimedOut, ClaimLost)) and run.ending is not None:
        return
    _log.warning(
        "task %s: succeeded with its transaction; what came after that changes nothing: %s: %s",
        run.task.task_id,
        type(error).__name__,
        error,
        exc_info=error if error.__traceback__ else None,
    )


def _completion(store: Store, task_id: str, token: str, rest_ms: int) -> StoreCompletion:
    """The block in the database where the task is."""
    make = store.capabilities.completion
    if make is None:
        engine = store.url.partition("://")[0]
        raise UsageError(
            f"transaction(): only PostgreSQL commits a task's writes together with its end, this store is {engine}; "
            "use current().once() here"
        )
    return cast("StoreCompletion", make(task_id, token, rest_ms))
