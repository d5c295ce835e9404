"""A step of a task that is done once: its result is kept under a key, and given to every run that comes to it again.

Between the end of the step and the keeping of its result there is a gap that cannot be closed from here: a crash in it
repeats the step, and so does an exception from outside that hits a thread just as its step returns. Everything else is
closed: only a current claim can keep, the first result stays, and neither an outage of the store nor a cancellation
comes between the step and its keeping, nor into the keeping.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar, overload

from holdfast.core.arguments import encode_result, is_async, result_decoder, return_type
from holdfast.core.durations import Duration, duration_ms
from holdfast.core.names import check_key
from holdfast.core.payload import is_encrypted
from holdfast.core.task import OUTCOMES, Hold
from holdfast.errors import BadOption, ClaimLost, UsageError
from holdfast.security.crypto import needs_key
from holdfast.stores import documents
from holdfast.stores.contract import Store
from holdfast.worker.backoff import persistently
from holdfast.worker.child.interrupt import in_a_loop, to_the_end
from holdfast.worker.child.run import Run

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: Longer than a task with the default retries, a weekend and the repair on Monday.
KEEP: Final = "7d"


class Once:
    """One step under its key; call it with the function and its arguments."""

    def __init__(self, run: Run, key: str, *, keep: Duration = KEEP) -> None:
        self._run = run
        self._key = check_key(key)
        self._what = f"once({key!r})"
        self._keep_ms = duration_ms(keep, "keep")
        if not self._keep_ms:
            raise BadOption(f"{self._what}: keep={keep!r} would keep nothing; give a time such as {KEEP!r}")

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The kept result of this step, or that of the function, kept; to be awaited if the function is async."""
        decode = result_decoder(return_type(function), self._what)
        if is_async(function):
            return self._awaited(lambda: function(*args, **kwargs), decode)
        self._refuse_in_a_loop(function)
        return self._waited(lambda: function(*args, **kwargs), decode)

    # -- one logic, two ways to wait ------------------------------------------------------------------------

    async def _awaited(self, step: Callable[[], Awaitable[Any]], decode: Callable[[bytes], Any]) -> Any:
        kept = await self._kept()
        if kept is None:
            kept = await to_the_end(self._keep(self._encoded(await step())))
        return decode(kept)

    def _waited(self, step: Callable[[], Any], decode: Callable[[bytes], Any]) -> Any:
        context = self._run.require_context(self._what)
        kept = context.wait_for(self._kept())
        if kept is None:
            kept = context.wait_for(self._keep(self._encoded(step())))
        return decode(kept)

    # -- the steps ------------------------------------------------------------------------------------------

    async def _kept(self) -> bytes | None:
        return self._opened(await self._retry(lambda store: documents.kept(store, self._key)))

    def _encoded(self, value: Any) -> bytes:
        if isinstance(value, OUTCOMES):
            raise value  # the step has not been done, and says what is to become of the task
        data = encode_result(value, f"{self._what}: result", self._run.type.codec.max_bytes)
        return data if self._run.type.crypto is None else self._run.type.crypto.kept(self._key, data)

    def _opened(self, kept: bytes | None) -> bytes | None:
        if kept is None:
            return None
        if self._run.type.crypto is not None:
            return self._run.type.crypto.opened_kept(self._key, kept)
        if is_encrypted(kept):
            raise needs_key(kept, f"{self._what}: the results that are kept")
        return kept

    async def _keep(self, data: bytes) -> bytes:
        hold = Hold(self._run.task.task_id, self._run.task.token)
        kept = await self._retry(lambda store: documents.keep(store, self._key, data, self._keep_ms, hold))
        value = self._opened(kept.value)
        if kept.reason or value is None:
            raise self._claim_lost()
        return value

    async def _retry(self, call: Callable[[Store], Awaitable[T]]) -> T:
        """The store's answer, through an outage, for as long as the task is ours."""
        store = self._run.require_context(self._what).store

        async def ask() -> T:
            if self._run.claim_lost():
                raise self._claim_lost()
            return await call(store)

        return await persistently(ask, f"task {self._run.task.task_id}: {self._what}")

    def _claim_lost(self) -> ClaimLost:
        return ClaimLost(f"task {self._run.task.task_id}: {self._what}: the claim of this attempt has passed")

    def _refuse_in_a_loop(self, function: Callable[..., Any]) -> None:
        """A plain function's result is given as it is, so the call would have to block the loop that it waits for."""
        if not in_a_loop():
            return
        name = getattr(function, "__name__", repr(function))
        raise UsageError(
            f"{self._what}: {name} is not async, and this is an event loop: give it an async function, "
            f"or run it in a thread: await current().once({self._key!r}, asyncio.to_thread, {name}, ...)"
        )
