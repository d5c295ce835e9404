"""The tokens of a store, cached for a few seconds."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from holdfast.clock import Clock
from holdfast.errors import BadOption, HoldfastError
from holdfast.security import tokens as access
from holdfast.security.scopes import Scopes
from holdfast.security.tokens import TOKEN_KIND, AccessToken, Bucket, Rate
from holdfast.stores import documents
from holdfast.stores.contract import Document, Store

log = logging.getLogger("holdfast.server")

#: Older than this, the tokens are refreshed at the next request, which does not wait for it.
FRESH_MS: Final = 2_000
#: Older than this, requests wait for the refresh.
OLDEST_MS: Final = 4_000
#: Unknown tokens are read one by one at this rate. Beyond it, their requests wait for the next refresh of all tokens:
#: clients with made-up tokens cannot keep the store busy.
_ASKED_ONE_BY_ONE: Final = Rate(10, 1)
#: One that the store does not know is not asked for again for this long.
_UNKNOWN_MS: Final = 1_000
_MAX_UNKNOWN: Final = 10_000
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
    """The tokens of a store, as a server caches them."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._tokens: dict[str, KnownToken] = {}
        #: When the store was asked, by the monotonic clock.
        self._asked_at_ms = -OLDEST_MS
        self._asking: asyncio.Task[None] | None = None
        #: Refreshes are numbered: the last one begun, and the last one answered.
        self._begun = self._answered = 0
        self._noting: dict[str, asyncio.Task[None]] = {}
        self._one_by_one = Bucket(_ASKED_ONE_BY_ONE, clock.monotonic_ms())
        self._asking_for: dict[str, asyncio.Task[KnownToken | None]] = {}
        #: Ids that the store did not know, and when that was.
        self._unknown: dict[str, int] = {}

    async def get(self, token_id: str) -> KnownToken | None:
        """The token of this id, as the store knew it a few seconds ago at the earliest."""
        age_ms = self._clock.monotonic_ms() - self._asked_at_ms
        if age_ms >= OLDEST_MS:
            await asyncio.shield(self._asked())
        elif age_ms >= FRESH_MS:
            self._asked()
        return self._tokens.get(token_id) or await self._look_for(token_id)

    async def _look_for(self, token_id: str) -> KnownToken | None:
        """Asks for one that is not known: perhaps it was made a moment ago."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._unknown.get(token_id, -_UNKNOWN_MS) < _UNKNOWN_MS:
            return None
        asking = self._asking_for.get(token_id)
        if asking is None and not self._one_by_one.take(now_ms):
            asking = self._asking_for[token_id] = asyncio.get_running_loop().create_task(self._ask_for(token_id))
            asking.add_done_callback(lambda done: self._asked_for(token_id, done))
        if asking is not None:
            return await asyncio.shield(asking)
        begun = self._begun
        while token_id not in self._tokens and self._answered <= begun:
            age_ms = self._clock.monotonic_ms() - self._asked_at_ms
            if self._asking is None and age_ms < FRESH_MS:
                await asyncio.sleep((FRESH_MS - age_ms) / 1000)
            else:
                await asyncio.shield(self._asked())
        return self._tokens.get(token_id)

    async def _ask_for(self, token_id: str) -> KnownToken | None:
        while True:
            begun, now_ms = self._begun, self._clock.monotonic_ms()
            document = await documents.one(self._store, TOKEN_KIND, token_id)
            if self._begun == begun:  # else a refresh of all tokens may know that it was revoked since
                break
        found = {} if document is None else _read(document)
        self._tokens.update(found)
        if not found:
            self._unknown[token_id] = now_ms
            if len(self._unknown) > _MAX_UNKNOWN:
                del self._unknown[next(iter(self._unknown))]
        return found.get(token_id)

    def _asked_for(self, token_id: str, asking: asyncio.Task[KnownToken | None]) -> None:
        self._asking_for.pop(token_id, None)
        if not asking.cancelled():
            asking.exception()  # raised in the callers, of which there may be none left

    def is_good(self, token_id: str) -> bool:
        """Whether a token is known and has not expired, without a refresh."""
        token = self._tokens.get(token_id)
        return token is not None and not token.record.has_expired(self._clock.now_ms())

    async def refresh(self) -> None:
        """Reads all tokens now; if the store does not answer, the known ones stay."""
        try:
            await asyncio.shield(self._asked())
        except HoldfastError as error:
            log.warning("could not refresh the tokens: %s", error)

    def note_use(self, token: KnownToken) -> None:
        """Records the time of the last use in the background, unless that was done lately."""
        now_ms = self._clock.now_ms()
        if now_ms - (token.record.used_at_ms or 0) >= _USE_MS and token.token_id not in self._noting:
            used = msgspec.structs.replace(token.record, used_at_ms=now_ms)
            noting = asyncio.get_running_loop().create_task(self._note(token, used))
            self._noting[token.token_id] = noting
            noting.add_done_callback(lambda _: self._noting.pop(token.token_id, None))

    async def _note(self, token: KnownToken, used: AccessToken) -> None:
        try:
            # Refused if it was revoked or noted by another server meanwhile; both are fine.
            await documents.put(self._store, TOKEN_KIND, token.token_id, access.write_token(used), token.version)
        except HoldfastError as error:
            log.warning("could not record the use of token %s: %s", token.token_id, error)
        token.record = used

    def _asked(self) -> asyncio.Task[None]:
        """One refresh for all callers that need one now."""
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask())
            self._asking.add_done_callback(self._done)
        return self._asking

    def _done(self, asking: asyncio.Task[None]) -> None:
        self._asking = None
        if not asking.cancelled():
            asking.exception()  # raised in the callers, of which there may be none left

    async def _ask(self) -> None:
        self._begun += 1
        number, now_ms = self._begun, self._clock.monotonic_ms()
        known: dict[str, KnownToken] = {}
        async for document in documents.every(self._store, TOKEN_KIND):
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
        log.error("token %s is damaged or of a newer version, and is ignored", document.name)
        return {}
