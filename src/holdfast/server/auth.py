"""Authentication: the rules of routes, callers, and the tokens that they come with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Literal, Protocol

import msgspec
from msgspec.structs import replace
from starlette.requests import Request

from holdfast.clock import Clock, SystemClock
from holdfast.security import tokens as access
from holdfast.security.scopes import Scope as Scope  # noqa: PLC0414  (imported from here by the routes)
from holdfast.security.tokens import Bucket, Rate
from holdfast.server.token_cache import FRESH_MS, KnownToken, KnownTokens
from holdfast.stores.contract import Store
from holdfast.stores.remote import problems
from holdfast.stores.remote.problems import Problem

#: Where a route gets the queue from that the scope must cover: from its address (the guard compares it), from its body
#: or from the task that it names (the route compares it, and a foreign task is an unknown one), or it has none.
QueueFrom = Literal["nowhere", "path", "body", "task"]

log = logging.getLogger("holdfast.server")

#: Long polls, waits for results and streams of events, all together.
MAX_WAITING: Final = 5_000
_NO_TOKEN: Final = "send Authorization: Bearer TOKEN"  # noqa: S105  (none)
#: A proxy in front may have checked the other one.
_TWO_TOKENS: Final = "send one Authorization header, not several"
#: Does not say which part was wrong.
_BAD_TOKEN: Final = "unknown, expired or revoked token"  # noqa: S105  (none)


class Rule(msgspec.Struct, frozen=True):
    """The scopes of which a caller needs one; a rule without scopes is public."""

    scopes: tuple[Scope, ...]
    queue: QueueFrom = "nowhere"

    @property
    def public(self) -> bool:
        """Whether no token is needed."""
        return not self.scopes


PUBLIC = Rule(())
#: For any token.
ANYBODY_KNOWN = Rule(tuple(Scope))


class Caller(Protocol):
    """The caller of a request, and its permissions."""

    name: str
    #: As they are written: `enqueue:images`, `read`.
    scopes: Sequence[str]

    def may(self, scope: Scope, queue: str | None = None) -> bool:
        """Whether the caller has this scope for this queue, or with None for any queue."""
        ...

    def may_everywhere(self, scope: Scope) -> bool:
        """Whether the caller has this scope for all queues."""
        ...

    def sees_secrets(self, queue: str) -> bool:
        """Whether arguments and results of this queue's tasks are shown without redaction."""
        ...

    def waiting(self) -> AbstractContextManager[asyncio.Future[None]]:
        """Counts one waiting request, or raises `Denied`; the future is done when the token is revoked or expired."""
        ...


class Guard(Protocol):
    """Authenticates requests."""

    async def check(self, request: Request, rule: Rule) -> Caller:
        """The caller, if the rule allows the request; else a `Denied`."""
        ...


class Denied(Exception):
    """The answer to a request is this problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem


# -- limits of one token -------------------------------------------------------------------------------------------


class Allowance:
    """The remaining rate and waits of a token; kept apart from its record, so that a changed record resets nothing."""

    def __init__(self, max_waiting: int) -> None:
        self._bucket: Bucket | None = None
        self._max_waiting = max_waiting
        #: One for each waiting request, done when the token is revoked or expired. A single one for all would cost each
        #: request a walk through the callbacks of the others.
        self._places: set[asyncio.Future[None]] = set()

    @property
    def waiting(self) -> int:
        """Waiting requests of this token."""
        return len(self._places)

    def spend(self, rate: Rate | None, now_ms: int) -> None:
        """Counts one request against the rate, or refuses it with the time to wait."""
        if rate is None:
            return
        if self._bucket is None or self._bucket.rate != rate:
            self._bucket = Bucket(rate, now_ms)
        wait_ms = self._bucket.take(now_ms)
        if wait_ms:
            refusal = problems.TOO_MANY_REQUESTS.problem(f"this token may make {rate} requests")
            raise Denied(replace(refusal, retry_after=-(-wait_ms // 1000)))

    @contextmanager
    def place(self) -> Iterator[asyncio.Future[None]]:
        """Counts one waiting request; the future is done when the token is revoked or expired."""
        if self.waiting >= self._max_waiting:
            most = f"this token has {self.waiting:,} requests waiting, which is the most"
            raise Denied(problems.TOO_MANY_REQUESTS.problem(most))
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._places.add(ended)
        try:
            yield ended
        finally:
            self._places.discard(ended)

    def end(self) -> None:
        """Ends the waits: the token is revoked or expired."""
        for ended in self._places:
            if not ended.done():
                ended.set_result(None)


# -- tokens --------------------------------------------------------------------------------------------------------


class TokenCaller:
    """A caller with this token."""

    __slots__ = ("_guard", "_token", "name", "scopes")

    def __init__(self, guard: TokenGuard, token: KnownToken) -> None:
        self.name = token.token_id
        self.scopes: Sequence[str] = token.scopes.texts
        self._token = token
        self._guard = guard

    def may(self, scope: Scope, queue: str | None = None) -> bool:
        """Whether the caller has this scope for this queue, or with None for any queue."""
        return self._token.scopes.may(scope, queue)

    def may_everywhere(self, scope: Scope) -> bool:
        """Whether the caller has this scope for all queues."""
        return self._token.scopes.may_everywhere(scope)

    def sees_secrets(self, queue: str) -> bool:
        """Not with `read` alone; callers that enqueue, run or manage tasks of a queue know their arguments anyway."""
        may = self._token.scopes.may
        return may(Scope.MANAGE) or may(Scope.WORK, queue) or may(Scope.ENQUEUE, queue)

    @contextmanager
    def waiting(self) -> Iterator[asyncio.Future[None]]:
        """Counts one waiting request of this token; the future is done when the token is revoked or expired."""
        with self._guard.allowance(self.name).place() as ended:
            self._guard.watch()
            yield ended


class Anonymous:
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
        """Anonymous callers may not long-poll."""
        raise Denied(problems.UNAUTHORIZED.problem(_NO_TOKEN))


class TokenGuard:
    """Authenticates by the tokens of the store."""

    def __init__(self, store: Store, *, clock: Clock | None = None, max_waiting: int = MAX_WAITING) -> None:
        self._clock = clock or SystemClock()
        self._known = KnownTokens(store, self._clock)
        self._max_waiting = max_waiting
        self._allowances: dict[str, Allowance] = {}
        self._watching: asyncio.Task[None] | None = None

    async def check(self, request: Request, rule: Rule) -> Caller:
        """The caller, if the rule allows the request; else a `Denied`."""
        if rule.public:
            return Anonymous()
        given = request.headers.getlist("authorization")
        if len(given) > 1:
            raise Denied(problems.UNAUTHORIZED.problem(_TWO_TOKENS))
        token = await self._token(given[0] if given else "")
        self.allowance(token.token_id).spend(token.record.rate, self._clock.monotonic_ms())
        self._known.note_use(token)
        caller = TokenCaller(self, token)
        _demand(caller, request, rule)
        return caller

    def allowance(self, token_id: str) -> Allowance:
        """The allowance of this token."""
        found = self._allowances.get(token_id)
        if found is None:
            found = self._allowances[token_id] = Allowance(self._max_waiting)
        return found

    def watch(self) -> None:
        """Refreshes the tokens while requests wait, so that the waits of a revoked token end."""
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
                await self._known.refresh()
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
