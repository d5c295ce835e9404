"""Tokens of the HTTP API: made, listed, revoked."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.errors import BadOption, UnknownToken
from holdfast.security import tokens as access
from holdfast.security.scopes import Scope, Scopes
from holdfast.security.tokens import TOKEN_KIND, AccessToken, Rate, TokenText
from holdfast.stores import documents
from holdfast.stores.contract import Document, Store

LONGEST_NOTE: Final = 200
_MOST_SCOPES: Final = 100
_FIRST_ID: Final = bytes(access.ID_BYTES)


class ListedToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is listed: everything but its hash."""

    token_id: str
    scopes: tuple[str, ...]
    note: str
    rate: str | None
    created_at_ms: int
    expires_at_ms: int | None
    used_at_ms: int | None


async def create(
    store: Store,
    scopes: Iterable[str],
    *,
    now_ms: int,
    expires_in_ms: int | None = None,
    rate: Rate | None = None,
    note: str = "",
) -> TokenText:
    """Creates a token; its secret cannot be shown again."""
    token = AccessToken(
        digest="",
        scopes=_checked(scopes),
        created_at_ms=now_ms,
        expires_at_ms=None if expires_in_ms is None else now_ms + _checked_expiry(expires_in_ms),
        rate=rate,
        note=_checked_note(note),
    )
    while True:
        made = await _make(store, token, secrets.token_bytes(access.ID_BYTES))
        if made is not None:
            return made


async def create_first(store: Store, *, now_ms: int) -> TokenText | None:
    """A token that may do everything, if there is no token at all."""
    if (await store.documents(TOKEN_KIND, limit=1)).documents:
        return None
    note = "made at the first start of a server"
    # Its id is always the same: of several servers that start at once, one makes it.
    return await _make(store, AccessToken(digest="", scopes=(Scope.ADMIN,), created_at_ms=now_ms, note=note), _FIRST_ID)


async def listed(store: Store) -> list[ListedToken]:
    """All tokens, the newest first."""
    found = [_listed(document) async for document in documents.every(store, TOKEN_KIND)]
    return sorted(found, key=lambda token: (-token.created_at_ms, token.token_id))


async def revoke(store: Store, token_id: str) -> ListedToken:
    """Takes a token away; servers that know it forget it within five seconds."""
    # A whole token is accepted too: an operator who revokes a leaked token has it at hand.
    text = access.parse_text(token_id)
    name = token_id if text is None else text.token_id
    while True:
        document = await documents.one(store, TOKEN_KIND, name)
        if document is None:
            raise UnknownToken(f"there is no token {access.without_tokens(token_id)!r:.80}; see `holdfast token ls`")
        if await documents.put(store, TOKEN_KIND, name, None, document.version):
            return _listed(document)


async def _make(store: Store, token: AccessToken, id_bytes: bytes) -> TokenText | None:
    """The token with a secret of its own; None if there is one of this id."""
    text = access.new_text(id_bytes, secrets.token_bytes(access.SECRET_BYTES))
    record = msgspec.structs.replace(token, digest=access.digest_of(text.secret))
    made = await documents.put(store, TOKEN_KIND, text.token_id, access.write_token(record), 0)
    return text if made else None


def _listed(document: Document) -> ListedToken:
    token = access.read_token(document.value)
    return ListedToken(
        token_id=document.name,
        scopes=token.scopes,
        note=token.note,
        rate=None if token.rate is None else str(token.rate),
        created_at_ms=token.created_at_ms,
        expires_at_ms=token.expires_at_ms,
        used_at_ms=token.used_at_ms,
    )


def _checked(scopes: Iterable[str]) -> tuple[str, ...]:
    texts = Scopes(scopes).texts
    if not texts:
        raise BadOption("scope: a token without one may do nothing; give at least one, such as work:images")
    if len(texts) > _MOST_SCOPES:
        raise BadOption(f"scope: {len(texts)} are too many, {_MOST_SCOPES} are the most; end QUEUE with *")
    return texts


def _checked_expiry(expires_in_ms: int) -> int:
    if expires_in_ms <= 0:
        raise BadOption("expires: a token that has expired already is of no use; write 30d, or leave it out")
    return expires_in_ms


def _checked_note(note: str) -> str:
    if len(note) > LONGEST_NOTE or not note.isprintable():
        raise BadOption(f"note: use at most {LONGEST_NOTE} printable characters, on one line")
    return note
