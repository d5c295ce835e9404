"""Who may call a route: every route names its rule, and a guard checks it before anything else is done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

import msgspec
from starlette.requests import Request

from holdfast.core.scopes import Scope as Scope  # noqa: PLC0414  (also for those who write rules)
from holdfast.wire.problems import Problem

#: Where a route gets the queue from that the scope must cover: from its address (the guard compares it), from its body
#: or from the task that it names (the route compares it, and a foreign task is an unknown one), or it has none.
QueueFrom = Literal["nowhere", "path", "body", "task"]


class Rule(msgspec.Struct, frozen=True):
    """What a caller must have: one of these scopes; with none named, nothing."""

    scopes: tuple[Scope, ...]
    queue: QueueFrom = "nowhere"

    @property
    def public(self) -> bool:
        """Whether anybody may."""
        return not self.scopes


PUBLIC = Rule(())
#: For whoever has a token at all.
ANYBODY_KNOWN = Rule(tuple(Scope))


class Caller(Protocol):
    """Who made a request, and what they may."""

    name: str
    #: As they are written: `enqueue:images`, `read`.
    scopes: Sequence[str]

    def may(self, scope: Scope, queue: str | None = None) -> bool:
        """Whether the scope is theirs, for this queue, or with None for any queue at all."""
        ...

    def may_everywhere(self, scope: Scope) -> bool:
        """Whether the scope is theirs for all queues."""
        ...

    def sees_secrets(self, queue: str) -> bool:
        """Whether arguments and results of this queue's tasks are shown with what looks like a secret in them."""
        ...

    def waiting(self) -> AbstractContextManager[asyncio.Future[None]]:
        """A place among those who wait in their name, or a `Denied`; what it gives is done when they may no longer."""
        ...


class Guard(Protocol):
    """Knows callers by their requests."""

    async def check(self, request: Request, rule: Rule) -> Caller:
        """The caller, if the rule allows the request; else a `Denied`."""
        ...


class Denied(Exception):
    """The answer to a request is this problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem
