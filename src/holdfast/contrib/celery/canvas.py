"""A call as an object; what combines several of them is refused until workflows are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.contrib.celery.refusals import WORKFLOWS, missing, missing_attribute, refuse


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

    def clone(self, args: Any = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> Signature:
        """A copy; more arguments go in front, unless it is immutable."""
        more = () if self.immutable else tuple(args or ())
        named = self.kwargs if self.immutable else {**self.kwargs, **(kwargs or {})}
        copied = {**self.options, **options}
        return Signature(self._task, (*more, *self.args), named, immutable=self.immutable, **copied)

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

    if not TYPE_CHECKING:  # or a checker would believe in every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute("signature", self, name)

    def __repr__(self) -> str:
        return f"{self.task}(*{self.args!r}, **{self.kwargs!r})"


class NamedTask:
    """A task of an app that this process knows by its name only: it can be enqueued, and not be run here."""

    def __init__(self, app: Any, name: str) -> None:
        self._app = app
        self.name = name

    def apply_async(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        """Enqueues a call."""
        return self._app.send_task(self.name, args, kwargs, **options)

    def apply(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        refuse(f"{self.name}.apply()", "this process has no task of that name: import its module, or enqueue it")

    __call__ = apply


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
