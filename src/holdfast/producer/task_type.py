"""Task types: declared functions that can also be recorded as tasks."""

from __future__ import annotations

import os.path
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import WRAPPER_ASSIGNMENTS
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, overload

import msgspec

from holdfast.core.arguments import ArgumentCodec, check_runnable, is_async
from holdfast.core.declared import MAX_DECLARED_BYTES, DeclaredType
from holdfast.core.durations import Duration
from holdfast.core.habits import OPTION_HABITS, TASK_HABITS, habit, only_known_options
from holdfast.core.names import check_type
from holdfast.core.retry import Retry, RunPolicy
from holdfast.core.task import Outcome
from holdfast.errors import BadArguments, BadName, BadOption
from holdfast.producer.enqueue import Prepared, Recorder
from holdfast.producer.handle import TaskHandle
from holdfast.producer.options import Options, changed, joined

if TYPE_CHECKING:
    from holdfast.security.crypto import PayloadCrypto
    from holdfast.stores.capabilities import Transaction

#: Where tasks of a type run: on the event loop, in a thread, or one at a time in a process.
RunIn = Literal["async", "thread", "process"]
P = ParamSpec("P")
R = TypeVar("R")


#: What `using` takes.
_CALL_OPTIONS: Final = frozenset(
    {
        "queue",
        "delay",
        "run_at",
        "priority",
        "request_id",
        "retry",
        "headers",
        "timeout",
        "hard_timeout",
        "expires",
        "transaction",
    }
)

#: What the app of a task type decides; one of a `TaskSet` has none of it until an app includes the set.
FROM_APP: Final = ("recorder", "options", "codec")


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
    def crypto(self) -> PayloadCrypto | None:
        """How its arguments and results are signed and encrypted."""
        return self.options.crypto

    def declared(self) -> DeclaredType | None:
        """What a worker publishes of it, within `MAX_DECLARED_BYTES`; None if its policy alone is larger."""
        options = self.options
        parameters, definitions = self.codec.declared()
        made = DeclaredType(
            name=self.name,
            queue=options.queue,
            priority=options.priority,
            policy=options.policy,
            protected=options.crypto is not None,
            parameters=parameters,
            definitions=definitions,
        )
        for each in (made, made.without_schemas(), msgspec.structs.replace(made, parameters=None)):
            if len(msgspec.json.encode(each)) <= MAX_DECLARED_BYTES:
                return each
        return None

    @only_known_options("using()")
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
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.__dict__["options"] = joined(options, transaction)
        return other

    def prepare(self, /, *args: P.args, **kwargs: P.kwargs) -> Prepared[R]:
        """The call, checked and encoded; enqueue it with its own `enqueue()`, or many with `app.enqueue_many`."""
        codec = self.codec
        try:
            payload = codec.encode(args, kwargs)
        except BadArguments as error:
            raise self._with_advice(error, kwargs) from None
        return Prepared(self.name, self.options, payload, codec.decode_result, self.recorder)

    def _with_advice(self, error: BadArguments, kwargs: Mapping[str, Any]) -> BadArguments:
        """The error; for an option among the arguments, with the call that takes it."""
        name = next((name for name in kwargs if f"unknown argument '{name}'" in str(error)), "")
        call = self.name.rpartition(".")[2]
        if name in _CALL_OPTIONS:
            return BadArguments(
                f"{error}; options go through using: {call}.using({name}={kwargs[name]!r}).enqueue(...)"
            )
        advice = OPTION_HABITS.get(name)
        return error if advice is None else BadArguments(f"{error}; {name!r}: {advice}")

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """Records one task; it is durable when this returns, or when the transaction commits that it is recorded in."""
        return await self.recorder.arecord_one(self.prepare(*args, **kwargs))

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """Records one task; it is durable when this returns, or when the transaction commits that it is recorded in."""
        return self.recorder.record_one(self.prepare(*args, **kwargs))

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function immediately, in this process; no task is enqueued."""
        result: R = self.function(*args, **kwargs)
        return result

    if not TYPE_CHECKING:  # or a checker would believe in every attribute

        def __getattr__(self, name: str) -> Any:
            if name in FROM_APP and "needs_app" in self.__dict__:
                self.__dict__["needs_app"]()
                return self.__dict__[name]
            own = self.__dict__.get("name", type(self).__name__)
            raise habit(TASK_HABITS, f"the task type {own}", name, own.rpartition(".")[2])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class AsyncTaskType(TaskType[P, R]):
    """A task type of an `async def`: what it returns when called is to be awaited."""

    def __call__(  # type: ignore[override]  # as the function itself: a call gives a coroutine, a task its result
        self, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Calls the function immediately, in this process; no task is enqueued."""
        coroutine: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return coroutine


class TaskDecorator(Protocol):
    """What `@app.task(...)` gives: a decorator that keeps the types of the function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R | Outcome]], /) -> AsyncTaskType[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R | Outcome], /) -> TaskType[P, R]: ...


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
    check_runnable(function, type_name)
    codec = ArgumentCodec(function, type_name, max_payload)
    awaited = is_async(function)
    kind = AsyncTaskType if awaited else TaskType
    return kind(type_name, function, awaited, codec, options, recorder, _alone(run, awaited, type_name))


def _alone(run: RunIn | None, is_async: bool, type_name: str) -> bool:
    default: RunIn = "async" if is_async else "thread"
    if run not in {None, default, "process"}:
        kind = "an `async def`" if is_async else "a `def`"
        raise BadOption(f"run: {run!r} is refused for {type_name}, {kind}: use {default!r} (the default) or 'process'")
    return run == "process"


def default_name(function: Callable[..., Any]) -> str:
    """`module.qualname`, the same whether the module was imported or run; a task type of another app keeps its name."""
    if isinstance(function, TaskType):
        return function.name
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
    return module if file is None else os.path.splitext(os.path.basename(file))[0]  # noqa: PTH119, PTH122  # fast to import
