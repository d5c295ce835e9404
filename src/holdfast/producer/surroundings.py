"""What an app declares around its tasks, for the workers that run them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast.errors import BadOption

#: Takes the running task and `call_next`, which runs it; gives its result.
Around = Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]]
#: Gives a context manager, or is a generator function that would make one; sync or async.
Lifespan = Callable[[], Any]
AroundT = TypeVar("AroundT", bound=Callable[..., Any])
LifespanT = TypeVar("LifespanT", bound=Callable[..., Any])


class Surroundings:
    """The part of an app that surrounds its tasks."""

    #: In the order of their declaration, the first one outermost.
    middlewares: tuple[Around, ...] = ()
    #: What a worker's process opens before its first task and closes after its last.
    opening: Lifespan | None = None

    def around(self, function: AroundT) -> AroundT:
        """Declares middleware, run on the event loop around every task: `async def timed(task, call_next)`.

        `await call_next()` runs the task and gives its result, or raises what it raised; what the middleware returns
        or raises counts instead. The first that is declared is the outermost.
        """
        name = getattr(function, "__name__", repr(function))
        called = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004
        if not inspect.iscoroutinefunction(called) or not _takes(function, 2):
            raise BadOption(f"@app.around: {name} must be written as: async def {name}(task, call_next)")
        self.middlewares = (*self.middlewares, function)
        return function

    def lifespan(self, function: LifespanT) -> LifespanT:
        """Declares what each process of a worker opens before its first task and closes after its last.

        An async generator function that yields once, or a function that gives a context manager, sync or async. What
        it yields is `current().state` for every task.
        """
        name = getattr(function, "__name__", repr(function))
        if self.opening is not None:
            raise BadOption(f"@app.lifespan: {name} would be the second one; open what it opens in the first one")
        if not callable(function) or inspect.iscoroutinefunction(function) or not _takes(function, 0):
            raise BadOption(f"@app.lifespan: {name} must be written as: async def {name}(): ... yield something")
        self.opening = function
        return function


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True
