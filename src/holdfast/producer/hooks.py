"""What an app declares around its tasks, for the workers that run them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from holdfast.errors import BadOption

#: Takes the running task and `call_next`, which runs it; gives its result.
Around = Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]]
#: The same in the thread of a `def` task.
SyncAround = Callable[[Any, Callable[[], Any]], Any]
#: Gives a context manager, or is a generator function that would make one; sync or async.
Lifespan = Callable[[], Any]
#: Takes the running task and how its attempt ended; sync or async.
EndHook = Callable[[Any, Any], Any]
AroundT = TypeVar("AroundT", bound=Callable[..., Any])
OutgoingT = TypeVar("OutgoingT", bound=Callable[..., Any])
LifespanT = TypeVar("LifespanT", bound=Callable[..., Any])
EndHookT = TypeVar("EndHookT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """How an attempt failed, for the hooks of `@app.on_failure`."""

    #: As the task raised it; `TimedOut` after its time limit. Of an `Again`, the error that it was raised from.
    error: BaseException
    #: No attempt follows: the task is a dead letter now, or `failed` if its policy keeps none.
    final: bool
    #: Seconds until the next attempt; None if there is none.
    retry_in: float | None
    #: Why no attempt follows: `max_attempts`, `not_retryable` or `timed_out`; None if one does.
    reason: str | None


class Hooks:
    """The part of an app that surrounds its tasks."""

    #: In the order of their declaration, the first one outermost.
    middlewares: tuple[Around, ...] = ()
    #: Inside of those, in the thread of a `def` task.
    sync_middlewares: tuple[SyncAround, ...] = ()
    #: What a worker's process opens before its first task and closes after its last, in reverse.
    lifespans: tuple[Lifespan, ...] = ()
    #: Called when an attempt has failed, and when one has succeeded.
    failure_hooks: tuple[EndHook, ...] = ()
    success_hooks: tuple[EndHook, ...] = ()
    #: A middleware in threads that an `async def` task cannot have around it.
    _only_for_functions: str | None = None

    @overload
    def around(self, function: AroundT, /) -> AroundT: ...

    @overload
    def around(self, /, *, skip_async: bool = False) -> Callable[[AroundT], AroundT]: ...

    def around(self, function: Any = None, /, *, skip_async: bool = False) -> Any:
        """Declares middleware: `async def timed(task, call_next)`, or `def` to run in the thread of each `def` task.

        `await call_next()`, or `call_next()` in a thread, runs the task and gives its result, or raises what it raised;
        what the middleware returns or raises counts instead. The first that is declared is the outermost, and all
        async ones are outside of the others. A `def` cannot surround `async def` tasks: with `skip_async`, they run
        without it, else an app that has both is refused.
        """
        if function is None:
            return lambda declared: self._around(declared, skip_async=skip_async)
        return self._around(function, skip_async=skip_async)

    def _around(self, function: AroundT, *, skip_async: bool) -> AroundT:
        name = _name_of(function)
        if not callable(function) or _is_generator(function) or not _takes(function, 2):
            raise BadOption(
                f"@app.around: {name} must be written as: async def {name}(task, call_next), or def {name}(task, "
                "call_next) for the threads of `def` tasks"
            )
        if _is_async(function):
            self.middlewares = (*self.middlewares, function)
            return function
        if not skip_async:
            self._only_for_functions = self._only_for_functions or name
            for task_type in getattr(self, "_task_types", {}).values():
                self._check_middleware(task_type.name, is_async=task_type.is_async)
        self.sync_middlewares = (*self.sync_middlewares, function)
        return function

    def _check_middleware(self, type_name: str, *, is_async: bool) -> None:
        """Refuses an `async def` task that a sync middleware would have to surround."""
        if is_async and self._only_for_functions is not None:
            raise BadOption(
                f"@app.around: {self._only_for_functions} is a `def` and cannot surround {type_name}, an `async def`: "
                f"write it as async def {self._only_for_functions}(task, call_next), or leave such tasks out with "
                "@app.around(skip_async=True)"
            )

    def lifespan(self, function: LifespanT) -> LifespanT:
        """Declares what each process of a worker opens before its first task and closes after its last.

        An async generator function that yields once, or a function that gives a context manager, sync or async. What
        it yields is `current().state` for every task; several are opened in the order of their declaration, and the
        dicts that they yield become one.
        """
        name = _name_of(function)
        if not callable(function) or inspect.iscoroutinefunction(function) or not _takes(function, 0):
            raise BadOption(f"@app.lifespan: {name} must be written as: async def {name}(): ... yield something")
        self.lifespans = (*self.lifespans, function)
        return function

    def on_failure(self, function: EndHookT) -> EndHookT:
        """Declares a hook for failed attempts: `def report(task, failure)`, sync or async.

        It is called before the attempt is settled, at least once for each failure unless the process is killed. What
        it raises is logged, and changes nothing. `failure` is a `FailedAttempt`.
        """
        self.failure_hooks = (*self.failure_hooks, _checked_hook(function, "on_failure", "failure"))
        return function

    def on_success(self, function: EndHookT) -> EndHookT:
        """Declares a hook for attempts that succeeded: `def note(task, result)`, sync or async; as `on_failure`."""
        self.success_hooks = (*self.success_hooks, _checked_hook(function, "on_success", "result"))
        return function


def checked_outgoing(function: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, if it can be called before an enqueue, sync or async."""
    name = _name_of(function)
    if not callable(function) or _is_async(function) or _is_generator(function) or not _takes(function, 1):
        raise BadOption(f"@app.outgoing: {name} must be written as: def {name}(call); it also runs for sync callers")
    return function


def _checked_hook(function: Callable[..., Any], hook: str, argument: str) -> Callable[..., Any]:
    name = _name_of(function)
    if not callable(function) or _is_generator(function) or not _takes(function, 2):
        raise BadOption(f"@app.{hook}: {name} must be written as: def {name}(task, {argument}), or async def")
    return function


def _name_of(function: object) -> str:
    return str(getattr(function, "__name__", repr(function)))


def _called(function: Callable[..., Any]) -> Any:
    return function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(_called(function))


def _is_generator(function: Callable[..., Any]) -> bool:
    called = _called(function)
    return inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called)


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True
