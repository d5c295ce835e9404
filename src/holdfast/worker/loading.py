"""Imports the user's app, `module:attribute`, and opens its lifespan."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from holdfast.app import Holdfast
from holdfast.core.names import suggestion
from holdfast.errors import BadApp

_log = logging.getLogger("holdfast.worker")

#: How long closing may take: all tasks are settled by then, and the supervisor waits for this process to exit.
CLOSING_S = 10.0


def load_app(reference: str) -> Holdfast:
    """The app behind `module:attribute` (`app` if no attribute is given), or a `BadApp` of one line.

    An object whose `holdfast` is an app stands for it: `Celery` of holdfast.contrib.celery is one.
    """
    found = load_object(reference)
    app = found if isinstance(found, Holdfast) else getattr(found, "holdfast", None)
    if not isinstance(app, Holdfast):
        name = reference.partition(":")[2] or "app"
        raise BadApp(f"cannot import {reference!r}: {name!r} is a {type(found).__name__}, not a Holdfast app")
    _ = app.task_types  # imports what it includes
    return app


def load_object(reference: str) -> Any:
    """The object behind `module:attribute` (`app` if no attribute is given), or a `BadApp` of one line."""
    module_name, _, attribute = reference.partition(":")
    attribute = attribute or "app"
    if not module_name or module_name.endswith(".py") or "/" in module_name:
        raise BadApp(f"cannot import {reference!r}: write it as module:app, such as myproject.tasks:app")
    module = _import(module_name, reference)
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            apps = [name for name, each in vars(module).items() if _is_app(each)]
            hint = suggestion(attribute, apps) or (f"it has {', '.join(apps)}" if apps else "it has no Holdfast app")
            raise BadApp(f"cannot import {reference!r}: module {module_name!r} has no {attribute!r}; {hint}") from None
    return found


def _is_app(found: Any) -> bool:
    return isinstance(found, Holdfast) or isinstance(vars(type(found)).get("holdfast"), property)


def _import(module_name: str, reference: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise BadApp(f"cannot import {reference!r}: there is no module {error.name!r} in {here}") from None
        raise BadApp(f"cannot import {reference!r}: {one_line(error)}") from error
    except (Exception, SystemExit) as error:
        raise BadApp(f"cannot import {reference!r}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """`ValueError: text (tasks.py, line 3)`, the place being the last one outside the import machinery."""
    text = " ".join(str(error).split())
    described = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SyntaxError):  # has its place in its text
        return described
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return f"{described} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else described


def _is_users(filename: str) -> bool:
    return "importlib" not in filename and filename != __file__


# -- the lifespan ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened(app: Holdfast) -> AsyncIterator[Any]:
    """What the app's lifespans give, for as long as the block lasts; `BadApp` if one cannot be opened."""
    spans: list[AbstractAsyncContextManager[Any]] = []
    states: list[Any] = []
    try:
        for opening in app.lifespans:
            try:
                span = _as_async(opening)
                states.append(await span.__aenter__())
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                raise BadApp(f"the lifespan could not be opened: {one_line(error)}") from error
            spans.append(span)
        yield _joined(states)
    finally:
        closing_ends = asyncio.get_running_loop().time() + CLOSING_S
        for span in reversed(spans):
            await _close(span, closing_ends)


async def _close(span: AbstractAsyncContextManager[Any], until: float) -> None:
    try:
        async with asyncio.timeout_at(until):
            await span.__aexit__(None, None, None)
    except BaseException:  # noqa: BLE001  (the process ends anyway, with all tasks settled)
        _log.exception("the lifespan could not be closed")


def _joined(states: list[Any]) -> Any:
    """What tasks see as `current().state`: the one thing that was yielded, or one dict of all dicts."""
    given = [state for state in states if state is not None]
    if len(given) < 2:
        return given[0] if given else None
    joined: dict[Any, Any] = {}
    for state in given:
        if not isinstance(state, Mapping):
            raise BadApp(
                f"several lifespans yield something, one of them a {type(state).__name__}: let each yield a dict, of "
                "which current().state is made, or nothing"
            )
        twice = joined.keys() & state.keys()
        if twice:
            raise BadApp(f"two lifespans yield {min(map(str, twice))!r}: give one of them another name")
        joined.update(state)
    return joined


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
