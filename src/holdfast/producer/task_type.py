"""Task types: declared functions that can also be recorded as tasks."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import WRAPPER_ASSIGNMENTS
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, overload

from holdfast.core.arguments import ArgumentCodec
from holdfast.core.durations import Duration
from holdfast.core.names import check_type
from holdfast.core.outcomes import Cancel, Snooze
from holdfast.core.policy import RunPolicy
from holdfast.core.retry import Retry
from holdfast.core.sealing import Sealing
from holdfast.errors import BadName, BadOption
from holdfast.producer.handle import TaskHandle
from holdfast.producer.options import Options, changed, joined
from holdfast.producer.recorder import Prepared, Recorder
from holdfast.stores.transactions import Transaction

#: Where tasks of a type run: on the event loop, in a thread, or one at a time in a process.
RunIn = Literal["async", "thread", "process"]
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, repr=False, eq=False)
class TaskType(Generic[P, R]):
    """A function with a name in the store; calling it is calling the function."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    codec: ArgumentCodec
    options: Options
    recorder: Recorder
    #: One at a time in a process of their own kind, instead of among others.
    alone: bool = False

    def __post_init__(self) -> None:
        for attribute in WRAPPER_ASSIGNMENTS:
            if hasattr(self.function, attribute):
                self.__dict__[attribute] = getattr(self.function, attribute)
        self.__dict__["__wrapped__"] = self.function

    @property
    def queue(self) -> str:
        """The queue that its tasks wait in."""
        return self.options.queue

    @property
    def priority(self) -> int:
        """The priority of its tasks."""
        return self.options.priority

    @property
    def policy(self) -> RunPolicy:
        """How often, how long and until when its tasks may run."""
        return self.options.policy

    @property
    def sealing(self) -> Sealing | None:
        """How its arguments and results are signed and encrypted."""
        return self.options.sealing

    def using(  # noqa: PLR0913  (the options that a call may have)
        self,
        *,
        queue: str | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        request_id: str | None = None,
        retry: Retry | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
        hard_timeout: Duration | None = None,
        expires: Duration | None = None,
        transaction: Transaction | None = None,
    ) -> Self:
        """The same task type with other options for the calls made through it; this one stays as it is.

        With a transaction, a task is recorded if and only if that commits.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        options = changed(
            self.options,
            queue=queue,
            delay=delay,
            run_at=run_at,
            priority=priority,
            request_id=request_id,
            retry=retry,
            headers=headers,
            timeout=timeout,
            hard_timeout=hard_timeout,
            expires=expires,
        )
        other.__dict__["options"] = joined(options, transaction)
        return other

    def prepare(self, /, *args: P.args, **kwargs: P.kwargs) -> Prepared[R]:
        """The call, checked and encoded, for `app.enqueue_many`."""
        codec = self.codec
        return Prepared(self.name, self.options, codec.encode(args, kwargs), codec.decode_result)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """Records one task; it is durable when this returns, or when the transaction commits that it is recorded in."""
        return await self.recorder.arecord_one(self.prepare(*args, **kwargs))

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """Records one task; it is durable when this returns, or when the transaction commits that it is recorded in."""
        return self.recorder.record_one(self.prepare(*args, **kwargs))

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function here and now; nothing is recorded."""
        result: R = self.function(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class AsyncTaskType(TaskType[P, R]):
    """A task type of an `async def`: what it returns when called is to be awaited."""

    def __call__(  # type: ignore[override]  # as the function itself: a call gives a coroutine, a task its result
        self, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Calls the function here and now; nothing is recorded."""
        coroutine: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return coroutine


class TaskDecorator(Protocol):
    """What `@app.task(...)` gives: a decorator that keeps the types of the function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R | Snooze | Cancel]], /) -> AsyncTaskType[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R | Snooze | Cancel], /) -> TaskType[P, R]: ...


def declare(
    recorder: Recorder,
    function: Callable[..., Any],
    name: str | None,
    options: Options,
    max_payload: int,
    run: RunIn | None = None,
) -> TaskType[..., Any]:
    """The task type of a function."""
    type_name = check_type(name) if name is not None else default_name(function)
    codec = ArgumentCodec(function, type_name, max_payload)
    is_async = inspect.iscoroutinefunction(function)
    kind = AsyncTaskType if is_async else TaskType
    return kind(type_name, function, is_async, codec, options, recorder, _alone(run, is_async, type_name))


def _alone(run: RunIn | None, is_async: bool, type_name: str) -> bool:
    usual: RunIn = "async" if is_async else "thread"
    if run not in {None, usual, "process"}:
        kind = "an `async def`" if is_async else "a `def`"
        raise BadOption(f"run: {run!r} is refused for {type_name}, {kind}: use {usual!r} (the usual) or 'process'")
    return run == "process"


def default_name(function: Callable[..., Any]) -> str:
    """`module.qualname`, the same whether the module was imported or run."""
    qualified = getattr(function, "__qualname__", None)
    if qualified is None:
        raise BadName(f"{function!r} has no name of its own: declare it with @app.task(name=...)")
    if "<" in qualified:
        kind = "a lambda" if qualified.endswith("<lambda>") else f"the local function {function.__name__!r}"
        raise BadName(f"{kind} cannot be found again by its name: declare it with @app.task(name=...)")
    return check_type(f"{_module_name(function.__module__)}.{qualified}")


def _module_name(module: str) -> str:
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:  # run with -m
        return str(spec.name).removesuffix(".__main__")
    return module if file is None else Path(file).stem
