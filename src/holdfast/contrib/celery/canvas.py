"""A call as an object; what combines several of them is refused until workflows are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from holdfast.contrib.celery.refusals import WORKFLOWS, missing, refuse


class Signature:
    """A task with its arguments and options, to be called later."""

    def __init__(
        self,
        task: Any,
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        immutable: bool = False,
        **options: Any,
    ) -> None:
        self._task = task
        self.task = task.name
        self.args = tuple(args or ())
        self.kwargs = dict(kwargs or {})
        self.immutable = immutable
        self.options = options

    def set(self, **options: Any) -> Signature:
        """Adds options for the call."""
        self.options.update(options)
        return self

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Enqueues the task; more arguments go in front."""
        return self.apply_async(args, kwargs)

    def apply_async(self, args: Any = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Enqueues the task; more arguments go in front."""
        more = {} if self.immutable else {**self.kwargs, **(kwargs or {})}
        before = () if self.immutable else tuple(args or ())
        return self._task.apply_async((*before, *self.args), more or self.kwargs, **{**self.options, **options})

    def apply(self, args: Any = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Runs the task in this process."""
        return self._task.apply((*(args or ()), *self.args), {**self.kwargs, **(kwargs or {})}, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        return self._task(*args, *self.args, **{**self.kwargs, **kwargs})

    def __or__(self, other: object) -> NoReturn:
        refuse("a | b", WORKFLOWS["chain"])

    def link(self, *_: Any) -> NoReturn:
        """Refused: a follow-up is a workflow."""
        refuse("link", WORKFLOWS["chain"])

    link_error = link

    def __repr__(self) -> str:
        return f"{self.task}(*{self.args!r}, **{self.kwargs!r})"


def chain(*_: Any, **__: Any) -> NoReturn:
    """Refused."""
    refuse("chain()", WORKFLOWS["chain"])


def group(*_: Any, **__: Any) -> NoReturn:
    """Refused."""
    refuse("group()", WORKFLOWS["group"])


def chord(*_: Any, **__: Any) -> NoReturn:
    """Refused."""
    refuse("chord()", WORKFLOWS["chord"])


def chunks(*_: Any, **__: Any) -> NoReturn:
    """Refused."""
    refuse("chunks()", WORKFLOWS["chunks"])


def signature(*_: Any, **__: Any) -> NoReturn:
    """Refused: without an app there is no task to a name."""
    refuse("signature()", WORKFLOWS["signature"])


subtask = maybe_signature = signature


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
