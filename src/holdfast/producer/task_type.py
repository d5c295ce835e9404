"""Task types: declared functions that can also be recorded as tasks."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import WRAPPER_ASSIGNMENTS
from pathlib import Path
from typing import Any, Generic, ParamSpec, Self, TypeVar

from holdfast.core.arguments import ArgumentCodec
from holdfast.core.durations import Duration
from holdfast.core.names import check_type
from holdfast.core.retry import Retry, RetryPolicy
from holdfast.errors import BadName
from holdfast.producer.handle import TaskHandle
from holdfast.producer.options import Options, changed, joined
from holdfast.producer.recorder import Prepared, Recorder
from holdfast.stores.transactions import Transaction

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
    def policy(self) -> RetryPolicy:
        """How its tasks are retried."""
        return self.options.policy

    def using(
        self,
        *,
        queue: str | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        request_id: str | None = None,
        retry: Retry | None = None,
        headers: Mapping[str, str] | None = None,
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


def declare(
    recorder: Recorder, function: Callable[..., Any], name: str | None, options: Options, max_payload: int
) -> TaskType[..., Any]:
    """The task type of a function."""
    type_name = check_type(name) if name is not None else default_name(function)
    codec = ArgumentCodec(function, type_name, max_payload)
    is_async = inspect.iscoroutinefunction(function)
    kind = AsyncTaskType if is_async else TaskType
    return kind(type_name, function, is_async, codec, options, recorder)


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
