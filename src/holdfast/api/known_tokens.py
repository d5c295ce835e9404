"""The tokens of a store, known from a look that is a few seconds old at most."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from holdfast.clock import Clock
from holdfast.core import access
from holdfast.core.access import TOKEN_KIND, AccessToken
from holdfast.core.scopes import Scopes
from holdfast.errors import BadOption, HoldfastError
from holdfast.stores.contract import Document, Store

log = logging.getLogger("holdfast.api")

#: After so long the store is asked again, at the next request, which does not wait for the answer.
FRESH_MS: Final = 2_000
#: Nobody is let in by what is older than this.
OLDEST_MS: Final = 4_000
#: A token that nobody knows is looked for so often at most: strangers cannot keep the store busy.
_LOOK_AGAIN_MS: Final = 250
#: The time of the last use is not written down more often.
_USE_MS: Final = 3_600_000


class KnownToken:
    """A token, and what it allows."""

    __slots__ = ("record", "scopes", "token_id", "version")

    def __init__(self, document: Document) -> None:
        self.token_id = document.name
        self.version = document.version
        self.record = access.read_token(document.value)
        self.scopes = Scopes(self.record.scopes)


class KnownTokens:
    """What a gateway knows of the tokens of its store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._tokens: dict[str, KnownToken] = {}
        #: When the store was asked, by the monotonic clock.
        self._asked_at_ms = -OLDEST_MS
        self._asking: asyncio.Task[None] | None = None
        #: Looks are numbered: how many were begun, and which was answered last.
        self._begun = self._answered = 0
        self._noting: dict[str, asyncio.Task[None]] = {}

    async def get(self, token_id: str) -> KnownToken | None:
        """The token of this id, as the store knew it a few seconds ago at the earliest."""
        begun = self._begun
        age_ms = self._clock.monotonic_ms() - self._asked_at_ms
        if age_ms >= OLDEST_MS:
            await asyncio.shield(self._asked())
        elif age_ms >= FRESH_MS:
            self._asked()
        while token_id not in self._tokens and self._answered <= begun:
            # Perhaps it was made a moment ago: only a look that begins now can tell.
            await self._look_again()
        return self._tokens.get(token_id)

    async def _look_again(self) -> None:
        age_ms = self._clock.monotonic_ms() - self._asked_at_ms
        if self._asking is None and age_ms < _LOOK_AGAIN_MS:
            await asyncio.sleep((_LOOK_AGAIN_MS - age_ms) / 1000)
        else:
            await asyncio.shield(self._asked())

    def is_good(self, token_id: str) -> bool:
        """Whether a token is there and its time is not over, without another look."""
        token = self._tokens.get(token_id)
        return token is not None and not token.record.has_expired(self._clock.now_ms())

    async def look(self) -> None:
        """Asks the store now; while it is away, what is known stays as it is."""
        try:
            await asyncio.shield(self._asked())
        except HoldfastError as error:
            log.warning("looking at the tokens: %s", error)

    def note_use(self, token: KnownToken) -> None:
        """Has the time of the last use written down, if that was not done lately; nobody waits for it."""
        now_ms = self._clock.now_ms()
        if now_ms - (token.record.used_at_ms or 0) >= _USE_MS and token.token_id not in self._noting:
            used = msgspec.structs.replace(token.record, used_at_ms=now_ms)
            noting = asyncio.get_running_loop().create_task(self._note(token, used))
            self._noting[token.token_id] = noting
            noting.add_done_callback(lambda _: self._noting.pop(token.token_id, None))

    async def _note(self, token: KnownToken, used: AccessToken) -> None:
        try:
            # Refused if it was revoked or noted by another gateway meanwhile; both are fine.
            await self._store.put_document(TOKEN_KIND, token.token_id, access.write_token(used), token.version)
        except HoldfastError as error:
            log.warning("noting the use of token %s: %s", token.token_id, error)
        token.record = used

    def _asked(self) -> asyncio.Task[None]:
        """One look at the store for all who want one now."""
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask())
            self._asking.add_done_callback(self._done)
        return self._asking

    def _done(self, asking: asyncio.Task[None]) -> None:
        self._asking = None
        if not asking.cancelled():
            asking.exception()  # told to whoever waits for it, and perhaps nobody does

    async def _ask(self) -> None:
        self._begun += 1
        number, now_ms = self._begun, self._clock.monotonic_ms()
        documents = await self._store.documents(TOKEN_KIND)
        known: dict[str, KnownToken] = {}
        for document in documents:
            before = self._tokens.get(document.name)
            if before is not None and before.version == document.version:
                known[document.name] = before
            else:
                known.update(_read(document))
        self._tokens = known
        self._asked_at_ms, self._answered = now_ms, number


def _read(document: Document) -> dict[str, KnownToken]:
    try:
        return {document.name: KnownToken(document)}
    except (msgspec.MsgspecError, BadOption):
        log.error("token %s is damaged, or of a newer version, and is not heeded", document.name)
        return {}
