"""One way to a Redis or Valkey server, to the master behind Sentinels, or to a cluster.

A link owns its connections (for each event loop its own, and never those of a parent process), repeats what may be
repeated until its deadline, asks replicas for confirmation as the durability level says, and puts errors in our words.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from redis.exceptions import MovedError, NoScriptError, ResponseError

from holdfast.stores.patience import TRY_SECONDS, Patience
from holdfast.stores.redis.clients import Command, Word, ask
from holdfast.stores.redis.direct import DirectLine
from holdfast.stores.redis.failures import TROUBLES, Failures
from holdfast.stores.redis.session import Session
from holdfast.stores.redis.urls import Address, RedisSettings
from holdfast.stores.sessions import LoopSessions

if TYPE_CHECKING:
    from holdfast.stores.redis.scripts import Script

#: So many redirections are followed at once; more in a row mean that the cluster is not done yet.
_REDIRECTIONS: Final = 5


class Link(Protocol):
    """The way to the servers."""

    #: Without the password, for messages.
    url: str
    settings: RedisSettings

    async def call(self, script: Script, key: str, args: Sequence[Word], *, safe: bool = False) -> Any:
        """Runs the script where the key is; with `safe`, returns when as many replicas have it as the level asks for.

        Sent again with the same arguments until it is answered or the deadline has passed.
        """
        ...

    async def calls(
        self, script: Script, key: str, many_args: Sequence[Sequence[Word]], *, safe: bool = False
    ) -> list[Any]:
        """As many calls in this order and in one round trip; one that is refused has all of them sent again."""
        ...

    def call_now(self, script: Script, key: str, args: Sequence[Word]) -> Any:
        """One try at `call` in the thread of a sync caller; None if it must be repeated by `call`."""
        ...

    async def pop(self, keys: Sequence[str], timeout_ms: int) -> bool:
        """Waits for an element in one of these lists (of one slot) and takes it; True if there was one."""
        ...

    async def command(self, *words: str, server: Address | None = None) -> Any:
        """The answer of this server, or of one of the masters; a refusal is a `StoreError`."""
        ...

    async def masters(self) -> list[Address]:
        """All servers that have tasks."""
        ...

    async def close(self) -> None:
        """Finishes calls under way and ends the connections."""
        ...


def open_link(settings: RedisSettings) -> Link:
    """A link with these settings; nothing is connected to before the first call."""
    return RedisLink(settings)


class RedisLink:
    """The one implementation; what differs between the kinds of servers is the route."""

    def __init__(self, settings: RedisSettings) -> None:
        self.url = settings.url
        self.settings = settings
        self._failures = Failures(settings)
        self._direct = DirectLine(settings)
        #: Who has answered for a key: the first call and every call after trouble goes the long way.
        self._homes: dict[str, Address] = {}
        self._sessions = LoopSessions(lambda: Session(settings))

    async def call(self, script: Script, key: str, args: Sequence[Word], *, safe: bool = False) -> Any:
        """Runs a script, insisting."""
        (reply,) = await self.calls(script, key, [args], safe=safe)
        return reply

    async def calls(
        self, script: Script, key: str, many_args: Sequence[Sequence[Word]], *, safe: bool = False
    ) -> list[Any]:
        """Runs a script some times, insisting."""
        session = await self._sessions.get()
        patience = _Patience(self.settings.deadline_ms)
        extra_seconds = self.settings.wait_ms / 1000 if safe else 0.0
        address: Address | None = None
        while True:
            try:
                async with asyncio.timeout(patience.for_a_try() + extra_seconds):
                    address = await session.route.find(key)
                    replies = await _run(session, address, script, [(key, *args) for args in many_args], safe)
                    self._homes[key] = address
                    return replies
            except TROUBLES as error:
                await self._mend(session, address, error, patience, script.name)

    def call_now(self, script: Script, key: str, args: Sequence[Word]) -> Any:
        """Tries once, if the server is known and its own word is enough."""
        address = self._homes.get(key)
        if address is None or self._sessions.closed or self.settings.durability != "local":
            return None
        reply = self._direct.call(address, script, (key, *args))
        if reply is None:
            self._homes.pop(key, None)
        return reply

    async def pop(self, keys: Sequence[str], timeout_ms: int) -> bool:
        """Waits for a bell; trouble on the way only makes it a shorter or longer wait."""
        session = await self._sessions.get()
        patience = _Patience(timeout_ms)
        address: Address | None = None
        while True:
            seconds = max(patience.left(), 0.001)
            try:
                async with asyncio.timeout(seconds + TRY_SECONDS):
                    address = await session.route.find(keys[0])
                    return _granted(await session.wait(address, ("BLPOP", *keys, f"{seconds:.3f}"))) is not None
            except TROUBLES as error:
                if patience.is_over() and not self._failures.hopeless(error):
                    return False
                await self._mend(session, address, error, patience)

    async def command(self, *words: str, server: Address | None = None) -> Any:
        """Asks a server, insisting, on a connection of its own: a server that must not be used can still be asked."""
        session = await self._sessions.get()
        patience = _Patience(self.settings.deadline_ms)
        address = server
        while True:
            try:
                async with asyncio.timeout(patience.for_a_try()):
                    # Any of them: the next try may find one that answers.
                    address = server or random.choice(await session.route.masters())  # noqa: S311
                    return await ask(self.settings, address, *words)
            except TROUBLES as error:
                await self._mend(session, address, error, patience)

    async def masters(self) -> list[Address]:
        """Asks for all masters, insisting."""
        session = await self._sessions.get()
        patience = _Patience(self.settings.deadline_ms)
        while True:
            try:
                async with asyncio.timeout(patience.for_a_try()):
                    return await session.route.masters()
            except TROUBLES as error:
                await self._mend(session, None, error, patience)

    async def close(self) -> None:
        """Ends the connections of this process, those of other event loops too."""
        self._direct.close()
        await self._sessions.close()

    async def _mend(
        self, session: Session, address: Address | None, error: BaseException, patience: _Patience, script: str = ""
    ) -> None:
        """Gets ready for the next try, or raises what there is to say."""
        # The cause is left out: an old server repeats what it was sent, the password too.
        refusal = self._failures.hopeless(error, script)
        if refusal is None and not isinstance(error, ResponseError):
            refusal = await session.misunderstanding(address)
        if refusal is not None:
            raise refusal from None
        if patience.is_over():
            raise self._failures.exhausted(error, address) from None
        if isinstance(error, MovedError) and address is not None and patience.may_follow():
            session.route.moved(error, address)
            return
        await session.doubt(address, error)
        await patience.pause()


async def _run(session: Session, address: Address, script: Script, calls: Sequence[Command], safe: bool) -> list[Any]:
    """One try on this server: by hash, and with the whole text if the server does not have it.

    ASK is not followed, unlike MOVED: while a slot moves, its keys are on two servers, and on the new one a
    script would take a key that has not arrived yet for one that does not exist.
    """
    needed = await session.durability.needed(address) if safe else 0
    waiting = session.durability.waiting(needed)
    by_hash: list[Command] = [("EVALSHA", script.sha, 1, *words) for words in calls]
    answers = await session.exchange(address, [*by_hash, *waiting])
    if isinstance(answers[0], NoScriptError):
        answers = await session.exchange(address, [("EVAL", script.text, 1, *calls[0]), *by_hash[1:], *waiting])
    replies = [_granted(answer) for answer in answers[: len(calls)]]
    session.durability.check(answers[len(calls) :], needed)
    return replies


def _granted(answer: Any) -> Any:
    if isinstance(answer, ResponseError):
        raise answer
    return answer


class _Patience(Patience):
    """Follows some redirections, too."""

    def __init__(self, limit_ms: int) -> None:
        super().__init__(limit_ms)
        self._followed = 0

    def may_follow(self) -> bool:
        """Whether to follow a redirection at once."""
        self._followed += 1
        return self._followed <= _REDIRECTIONS
