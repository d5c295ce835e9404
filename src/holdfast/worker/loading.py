"""Imports the user's app: `module:attribute`."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from holdfast.core.sealing import Sealing
from holdfast.errors import BadApp
from holdfast.stores.contract import Retention, Store


class Codec(Protocol):
    """Payload bytes to arguments, result to bytes."""

    @property
    def max_bytes(self) -> int:
        """The largest arguments or result."""
        ...

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments for `function(*args, **kwargs)`."""
        ...

    def encode_result(self, value: Any) -> bytes:
        """The result as JSON bytes."""
        ...


class TaskType(Protocol):
    """What a worker needs to know of a task type."""

    @property
    def name(self) -> str:
        """The name by which tasks refer to it."""
        ...

    @property
    def function(self) -> Callable[..., Any]:
        """What to run."""
        ...

    @property
    def codec(self) -> Codec:
        """How to read the arguments."""
        ...

    @property
    def sealing(self) -> Sealing | None:
        """How its arguments and results are signed and encrypted."""
        ...

    @property
    def is_async(self) -> bool:
        """On the event loop, or in a thread."""
        ...

    @property
    def alone(self) -> bool:
        """One at a time in a process, instead of among others."""
        ...


class App(Protocol):
    """What a worker needs to know of an app."""

    @property
    def url(self) -> str:
        """The store's URL."""
        ...

    @property
    def lease_ms(self) -> int:
        """How long a claim lasts without a heartbeat."""
        ...

    @property
    def retention(self) -> Retention:
        """How long finished tasks are kept."""
        ...

    @property
    def task_types(self) -> Mapping[str, TaskType]:
        """By name."""
        ...

    @property
    def middlewares(self) -> Sequence[Callable[..., Any]]:
        """What runs around every task, the first one outermost."""
        ...

    @property
    def opening(self) -> Callable[[], Any] | None:
        """What each process opens before its first task."""
        ...

    @property
    def store(self) -> Store:
        """Opened on first use."""
        ...


_PARTS_OF_AN_APP = ("url", "lease_ms", "retention", "task_types")


def load_app(reference: str) -> Any:
    """The app object behind `module:attribute` (`app` if no attribute is given), or a `BadApp` of one line."""
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
            raise BadApp(f"cannot import {reference!r}: module {module_name!r} has no {attribute!r}") from None
    # The class is asked, not the object: its `store` would be opened.
    if inspect.isclass(found) or not all(
        hasattr(type(found), part) or hasattr(found, part) for part in _PARTS_OF_AN_APP
    ):
        raise BadApp(f"cannot import {reference!r}: {attribute!r} is a {type(found).__name__}, not a Holdfast app")
    return found


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
