"""What the app opens once in every process of a worker: pools, clients, models."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

from holdfast.errors import BadApp
from holdfast.worker.loading import App, one_line

_log = logging.getLogger("holdfast.worker")

#: How long closing may take: all tasks are settled by then, and somebody waits for this process to go.
CLOSING_S = 10.0


@asynccontextmanager
async def opened(app: App) -> AsyncIterator[Any]:
    """What the app's lifespan gives, for as long as the block lasts; `BadApp` if it cannot be opened."""
    opening = app.opening
    if opening is None:
        yield None
        return
    try:
        span = _as_async(opening)
        state = await span.__aenter__()
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        raise BadApp(f"the lifespan could not be opened: {one_line(error)}") from error
    try:
        yield state
    finally:
        await _close(span)


async def _close(span: AbstractAsyncContextManager[Any]) -> None:
    try:
        async with asyncio.timeout(CLOSING_S):
            await span.__aexit__(None, None, None)
    except BaseException:  # noqa: BLE001  (the process ends anyway, with all tasks settled)
        _log.exception("the lifespan could not be closed")


def _as_async(opening: Callable[[], Any]) -> AbstractAsyncContextManager[Any]:
    if inspect.isasyncgenfunction(opening):
        return asynccontextmanager(opening)()
    span: Any = contextmanager(opening)() if inspect.isgeneratorfunction(opening) else opening()
    if isinstance(span, AbstractAsyncContextManager):
        return span
    if isinstance(span, AbstractContextManager):
        return _awaitable(span)
    raise TypeError(f"{type(span).__name__} is not a context manager; write: async def lifespan(): ... yield something")


@asynccontextmanager
async def _awaitable(span: AbstractContextManager[Any]) -> AsyncIterator[Any]:
    with span as state:
        yield state
