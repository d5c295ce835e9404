"""The link to a Redis or Valkey server, to the master behind Sentinels, or to a cluster.

It owns its connections (for each event loop its own, and never those of a parent process), repeats what may be
repeated until its deadline, asks replicas for confirmation as the durability level says, and puts errors in our words.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import Connection
from redis.exceptions import MovedError, NoScriptError, ReadOnlyError, ResponseError

from holdfast.errors import BadUrl, StoreUnavailable
from holdfast.stores.connections import CLOSED, TRY_SECONDS, Deadline, LoopSession, LoopSessions, Try
from holdfast.stores.redis.connection import BlockingConnections, Command, Pool, Word, ask, exchange
from holdfast.stores.redis.doctor import check_master, first_objection, first_questions
from holdfast.stores.redis.errors import TROUBLES, Failures, TooFewReplicas, Unsuitable, misunderstanding
from holdfast.stores.redis.topology import Durability, route_for
from holdfast.stores.redis.urls import Address, RedisSettings

if TYPE_CHECKING:
    from holdfast.stores.redis.scripts import Script

#: Redirections that are followed at once; more in a row mean that the cluster is not done yet.
_REDIRECTIONS: Final = 5
#: Connections of one event loop to one server: calls are short, and more of them would only wait in the server.
CALL_CONNECTIONS: Final = 32
#: Each waiting pop needs a connection of its own.
WAITING_CONNECTIONS: Final = 1_024


class Session(LoopSession):
    """The connections of one event loop; they end with it."""

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__()
        self.route = route_for(settings)
        self.durability = Durability(settings, self.route, self.exchange)
        self._settings = settings
        self._calling: dict[Address, Pool] = {}
        self._waiting: dict[Address, Pool] = {}
        self._met: set[Address] = set()
        self._diagnosed: set[Address] = set()
        self._closed = False
        self._ended = False

    async def exchange(self, address: Address, commands: Sequence[Command], a_try: Try | None = None) -> list[Any]:
        """Sends the commands to this server in one round trip."""
        return await self._pool(self._calling, address, CALL_CONNECTIONS).exchange(commands, a_try)

    async def wait(self, address: Address, command: Command) -> Any:
        """Sends a command that may take long, where it holds up no other call."""
        (reply,) = await self._pool(self._waiting, address, WAITING_CONNECTIONS).exchange([command])
        return reply

    async def doubt(self, address: Address | None, error: BaseException) -> None:
        """After an error of this server: nothing that was known about it is relied on."""
        self.route.doubt(address)
        if address is None:
            return
        self.durability.forget(address)
        # Connections on which a master refused are good; those to a server that is none any more, or is gone, are not.
        answered = isinstance(error, (ResponseError, TooFewReplicas)) and not isinstance(error, ReadOnlyError)
        if (pool := self._calling.get(address)) and not answered:
            await pool.forget()

    async def misunderstanding(self, address: Address | None) -> BadUrl | None:
        """Why a server that has never answered may never do so: one of us speaks TLS and the other does not."""
        place = address or self._settings.addresses[0]
        if place in self._met or place in self._diagnosed:
            return None
        self._diagnosed.add(place)
        return await misunderstanding(self._settings, place)

    async def _end(self) -> None:
        self._closed = True
        for pool in list(self._waiting.values()):
            await pool.close()
        await self.calls_to_end()
        self._ended = True
        for pool in list(self._calling.values()):
            await pool.close()

    def _pool(self, pools: dict[Address, Pool], address: Address, limit: int) -> Pool:
        pool = pools.get(address)
        if pool is None:
            # Calls under way may still need a connection, for their first try or the next one.
            if self._ended or (self._closed and pools is self._waiting):
                raise StoreUnavailable(CLOSED)
            pool = pools[address] = Pool(self._settings, address, limit=limit, greet=self._greet)
        return pool

    async def _greet(self, address: Address, connection: Connection) -> None:
        """Refuses a server that is no master, and, at the first meeting, one that cannot be used."""
        questions: list[Command] = [] if address in self._met else [*first_questions(self._settings)]
        role, *answers = await exchange(connection, [("ROLE",), *questions])
        if answers and (problem := first_objection(answers, self._settings)):
            raise Unsuitable(problem)
        check_master(role)
        self._met.add(address)


class Link:
    """Calls scripts and commands; what differs between the kinds of servers is the route."""

    def __init__(self, settings: RedisSettings) -> None:
        self.url = settings.url
        self.settings = settings
        self._failures = Failures(settings)
        self._blocking = BlockingConnections(settings)
        #: The server that has answered for a key; unknown before the first call and after an error.
        self._homes: dict[str, Address] = {}
        self._sessions = LoopSessions(lambda: Session(settings))

    async def call(self, script: Script, key: str, args: Sequence[Word], *, safe: bool = False) -> Any:
        """Runs the script where the key is; with `safe`, returns when as many replicas have it as the level asks for.

        Sent again with the same arguments until it is answered or the deadline has passed.
        """
        (reply,) = await self.calls(script, key, [args], safe=safe)
        return reply

    async def calls(
        self, script: Script, key: str, many_args: Sequence[Sequence[Word]], *, safe: bool = False
    ) -> list[Any]:
        """As many calls in this order and in one round trip; one that is refused has all of them sent again."""
        session = await self._sessions.get()
        with session.call():
            return await self._retried(session, script, key, many_args, safe=safe)

    async def _retried(
        self, session: Session, script: Script, key: str, many_args: Sequence[Sequence[Word]], *, safe: bool
    ) -> list[Any]:
        deadline = _Deadline(self.settings.deadline_ms)
        waits = safe and self.settings.durability != "local"
        extra_seconds = self.settings.wait_ms / 1000 if waits else 0.0
        address: Address | None = None
        while True:
            try:
                async with Try(deadline.for_a_try() + extra_seconds) as a_try:
                    address = await session.route.find(key)
                    replies = await _run(session, a_try, address, script, [(key, *args) for args in many_args], safe)
                    self._homes[key] = address
                    self._failures.answered.add(script.name)
                    return replies
            except TROUBLES as error:
                await self._recover(session, address, error, deadline, script.name)

    def call_now(self, script: Script, key: str, args: Sequence[Word]) -> Any:
        """One try at `call` in the thread of a sync caller; None if it must be repeated by `call`.

        Only if the server is known, and no replica has to confirm.
        """
        address = self._homes.get(key)
        if address is None or self._sessions.closed or self.settings.durability != "local":
            return None
        reply = self._blocking.call(address, script, (key, *args))
        if reply is None:
            self._homes.pop(key, None)
        return reply

    async def pop(self, keys: Sequence[str], timeout_ms: int) -> bool:
        """Waits for an element in one of these lists (of one slot) and takes it; True if there was one.

        An error on the way only makes it a shorter or longer wait.
        """
        session = await self._sessions.get()
        deadline = _Deadline(timeout_ms)
        address: Address | None = None
        while True:
            seconds = max(deadline.left(), 0.001)
            try:
                async with asyncio.timeout(seconds + TRY_SECONDS):
                    address = await session.route.find(keys[0])
                    return _granted(await session.wait(address, ("BLPOP", *keys, f"{seconds:.3f}"))) is not None
            except TROUBLES as error:
                if deadline.is_over() and not self._failures.hopeless(error):
                    return False
                await self._recover(session, address, error, deadline)

    async def command(self, *words: str, server: Address | None = None) -> Any:
        """The answer of this server, or of one of the masters; a refusal is a `StoreError`.

        On a connection of its own: a server that must not be used can still be asked.
        """
        session = await self._sessions.get()
        deadline = _Deadline(self.settings.deadline_ms)
        address = server
        while True:
            try:
                async with asyncio.timeout(deadline.for_a_try()):
                    # Any of them: the next try may find one that answers.
                    address = server or random.choice(await session.route.masters())  # noqa: S311
                    return await ask(self.settings, address, *words)
            except TROUBLES as error:
                await self._recover(session, address, error, deadline)

    async def masters(self) -> list[Address]:
        """All servers that have tasks."""
        session = await self._sessions.get()
        deadline = _Deadline(self.settings.deadline_ms)
        while True:
            try:
                async with asyncio.timeout(deadline.for_a_try()):
                    return await session.route.masters()
            except TROUBLES as error:
                await self._recover(session, None, error, deadline)

    async def close(self) -> None:
        """Finishes calls under way and ends the connections of this process, those of other event loops too."""
        self._blocking.close()
        await self._sessions.close()

    async def _recover(
        self, session: Session, address: Address | None, error: BaseException, deadline: _Deadline, script: str = ""
    ) -> None:
        """Gets ready for the next try, or raises what there is to say."""
        # The cause is left out: an old server repeats what it was sent, the password too.
        refusal = self._failures.hopeless(error, script)
        if refusal is None and not self._failures.answered and not isinstance(error, ResponseError):
            refusal = await session.misunderstanding(address)
        if refusal is not None:
            raise refusal from None
        if deadline.is_over():
            raise self._failures.exhausted(deadline.most_telling(error), address, deadline.spent_ms()) from None
        if isinstance(error, MovedError) and address is not None and deadline.may_follow():
            session.route.moved(error, address)
            return
        await session.doubt(address, error)
        await deadline.pause(error)


async def _run(
    session: Session, a_try: Try, address: Address, script: Script, calls: Sequence[Command], safe: bool
) -> list[Any]:
    """One try on this server: by hash, and all again with the whole text if the server did not have it for one of them.

    ASK is not followed, unlike MOVED: while a slot moves, its keys are on two servers, and on the new one a
    script would take a key that has not arrived yet for one that does not exist.
    """
    needed = await session.durability.needed(address) if safe else 0
    waiting = session.durability.waiting(needed)
    by_hash: list[Command] = [("EVALSHA", script.sha, 1, *words) for words in calls]
    answers = await session.exchange(address, [*by_hash, *waiting], a_try)
    if any(isinstance(answer, NoScriptError) for answer in answers):
        # Scripts can be flushed between two commands of a pipeline: each of them brings its text along.
        in_full: list[Command] = [("EVAL", script.text, 1, *words) for words in calls]
        answers = await session.exchange(address, [*in_full, *waiting], a_try)
    replies = [_granted(answer) for answer in answers[: len(calls)]]
    session.durability.check(answers[len(calls) :], needed)
    return replies


def _granted(answer: Any) -> Any:
    if isinstance(answer, ResponseError):
        raise answer
    return answer


class _Deadline(Deadline):
    """Follows some redirections, too."""

    def __init__(self, limit_ms: int) -> None:
        super().__init__(limit_ms)
        self._followed = 0

    def may_follow(self) -> bool:
        """Whether to follow a redirection at once."""
        self._followed += 1
        return self._followed <= _REDIRECTIONS
