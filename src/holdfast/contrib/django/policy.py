"""How the runs of one Django task are retried and limited, written beside its function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from holdfast.core.durations import Duration
from holdfast.core.retry import Retry
from holdfast.errors import BadOption
from holdfast.producer.task_type import RunIn

F = TypeVar("F")
#: Where a function carries its policy.
_ATTRIBUTE: Final = "__holdfast_policy__"


class Policy(NamedTuple):
    """What `policy` was given; None: as the OPTIONS of the backend say."""

    retry: Retry | None = None
    timeout: Duration | None = None
    hard_timeout: Duration | None = None
    expires: Duration | None = None
    run: RunIn | None = None


def policy(
    *,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    hard_timeout: Duration | None = None,
    expires: Duration | None = None,
    run: RunIn | None = None,
) -> Callable[[F], F]:
    """The policy of one task, under or over `@task`; what is left out is as the OPTIONS of the backend say.

    With another backend than Holdfast's it changes nothing, so that a reusable app may carry it.
    """
    given = Policy(retry, timeout, hard_timeout, expires, run)

    def declare(function: F) -> F:
        setattr(function_of(function, "policy"), _ATTRIBUTE, given)
        return function

    return declare


def function_of(function: Any, what: str) -> Callable[..., Any]:
    """The function that is decorated, under or over `@task`."""
    target = getattr(function, "func", function)
    if not inspect.isfunction(target):
        raise BadOption(f"{what}: {function!r} is neither a function nor a task of one; write it under @task")
    return target


def policy_of(function: Callable[..., Any]) -> Policy:
    """The policy that the function of a task carries."""
    found = getattr(function, _ATTRIBUTE, None)
    return found if isinstance(found, Policy) else Policy()
