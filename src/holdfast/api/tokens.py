"""The guard of a gateway: who comes with which token, and what that allows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from starlette.requests import Request

from holdfast.api.guard import Caller, Denied, Rule, Scope
from holdfast.api.known_tokens import FRESH_MS, KnownToken, KnownTokens
from holdfast.api.limits import MAX_WAITING, Allowance
from holdfast.clock import Clock, SystemClock
from holdfast.core import access
from holdfast.stores.contract import Store
from holdfast.wire import problems

_NO_TOKEN: Final = "send Authorization: Bearer TOKEN"  # noqa: S105  (none)
#: Nothing is told about which part of it was wrong.
_BAD_TOKEN: Final = "this token is not known here, or not any more"  # noqa: S105  (none)


class TokenCaller:
    """Whoever has this token."""

    __slots__ = ("_guard", "_token", "name", "scopes")

    def __init__(self, guard: TokenGuard, token: KnownToken) -> None:
        self.name = token.token_id
        self.scopes: Sequence[str] = token.scopes.texts
        self._token = token
        self._guard = guard

    def may(self, scope: Scope, queue: str | None = None) -> bool:
        """Whether the scope is theirs, for this queue, or with None for any queue at all."""
        return self._token.scopes.may(scope, queue)

    def may_everywhere(self, scope: Scope) -> bool:
        """Whether the scope is theirs for all queues."""
        return self._token.scopes.may_everywhere(scope)

    def sees_secrets(self, queue: str) -> bool:
        """Those who only look do not; those who made, run or change the tasks of a queue know them anyway."""
        may = self._token.scopes.may
        return may(Scope.MANAGE) or may(Scope.WORK, queue) or may(Scope.ENQUEUE, queue)

    @contextmanager
    def waiting(self) -> Iterator[asyncio.Future[None]]:
        """A place among those who wait on this token; what it gives is done when the token is no longer good."""
        with self._guard.allowance(self.name).place() as ended:
            self._guard.watch()
            yield ended


class Nobody:
    """The caller of a public route."""

    name = ""
    scopes: Sequence[str] = ()

    def may(self, scope: Scope, queue: str | None = None) -> bool:
        """Nothing."""
        del scope, queue
        return False

    def may_everywhere(self, scope: Scope) -> bool:
        """Nothing."""
        del scope
        return False

    def sees_secrets(self, queue: str) -> bool:
        """Nothing."""
        del queue
        return False

    def waiting(self) -> AbstractContextManager[asyncio.Future[None]]:
        """Nobody waits for strangers."""
        raise Denied(problems.UNAUTHORIZED.problem(_NO_TOKEN))


class TokenGuard:
    """Lets in whoever has a token that the store knows."""

    def __init__(self, store: Store, *, clock: Clock | None = None, max_waiting: int = MAX_WAITING) -> None:
        self._clock = clock or SystemClock()
        self._known = KnownTokens(store, self._clock)
        self._max_waiting = max_waiting
        self._allowances: dict[str, Allowance] = {}
        self._watching: asyncio.Task[None] | None = None

    async def check(self, request: Request, rule: Rule) -> Caller:
        """The caller, if the rule allows the request; else a `Denied`."""
        if rule.public:
            return Nobody()
        token = await self._token(request.headers.get("authorization", ""))
        self.allowance(token.token_id).spend(token.record.rate, self._clock.monotonic_ms())
        self._known.note_use(token)
        caller = TokenCaller(self, token)
        _demand(caller, request, rule)
        return caller

    def allowance(self, token_id: str) -> Allowance:
        """What this token has left."""
        found = self._allowances.get(token_id)
        if found is None:
            found = self._allowances[token_id] = Allowance(self._max_waiting)
        return found

    def watch(self) -> None:
        """Looks at the tokens while somebody waits, so that nobody waits on with a token that is no longer good."""
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _token(self, header: str) -> KnownToken:
        method, _, credentials = header.partition(" ")
        if method.lower() != "bearer":
            raise Denied(problems.UNAUTHORIZED.problem(_NO_TOKEN))
        text = access.parse_text(credentials.strip())
        if text is None:
            raise Denied(problems.UNAUTHORIZED.problem(_BAD_TOKEN))
        token = await self._known.get(text.token_id)
        genuine = access.fits(None if token is None else token.record, text.secret)
        if token is None or not genuine or token.record.has_expired(self._clock.now_ms()):
            raise Denied(problems.UNAUTHORIZED.problem(_BAD_TOKEN))
        return token

    async def _watch(self) -> None:
        try:
            while any(allowance.waiting for allowance in self._allowances.values()):
                await asyncio.sleep(FRESH_MS / 1000)
                await self._known.look()
                self._end_bad_ones()
        finally:
            self._watching = None

    def _end_bad_ones(self) -> None:
        for token_id in [known for known in self._allowances if not self._known.is_good(known)]:
            self._allowances.pop(token_id).end()


def _demand(caller: TokenCaller, request: Request, rule: Rule) -> None:
    queue = request.path_params.get("queue") if rule.queue == "path" else None
    if any(caller.may(scope, queue) for scope in rule.scopes):
        return
    if queue is not None and any(caller.may(scope) for scope in rule.scopes):
        raise Denied(problems.FORBIDDEN.problem(f"this token may not do that in queue {queue!r:.140}"))
    needed = " or ".join(rule.scopes)
    raise Denied(problems.FORBIDDEN.problem(f"that needs the scope {needed}, and token {caller.name} does not have it"))
