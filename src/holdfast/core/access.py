"""Tokens of the HTTP API: what is kept of them, which is not enough to use one.

A token is `hf_`, its public id, `_`, its secret: 256 bits that are shown once. The store has their SHA-256. A random
secret of that size cannot be guessed from its hash, however fast hashes are made, so a slow hash would only slow us.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final, NamedTuple

import msgspec

from holdfast.core.rates import Rate

#: The kind of their documents; the name of a document is the public id.
TOKEN_KIND: Final = "token"  # noqa: S105  (not one)
ID_BYTES: Final = 6
SECRET_BYTES: Final = 32
_TEXT = re.compile(r"hf_([0-9a-f]{12})_([0-9a-f]{64})", re.ASCII)
_NOBODYS: Final = hashlib.sha256(b"").hexdigest()


class AccessToken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a store keeps of a token."""

    #: SHA-256 of the secret, in hex.
    digest: str
    #: As they are written: `enqueue:images`, `read`.
    scopes: tuple[str, ...]
    created_at_ms: int
    expires_at_ms: int | None = None
    rate: Rate | None = None
    note: str = ""
    #: When it was used last, give or take an hour.
    used_at_ms: int | None = None

    def has_expired(self, now_ms: int) -> bool:
        """Whether its time is over."""
        return self.expires_at_ms is not None and now_ms >= self.expires_at_ms


class TokenText(NamedTuple):
    """A token as its owner has it."""

    token_id: str
    secret: str

    def __str__(self) -> str:
        return f"hf_{self.token_id}_{self.secret}"

    def __repr__(self) -> str:
        return f"TokenText({self.token_id!r}, '***')"


def new_text(id_bytes: bytes, secret_bytes: bytes) -> TokenText:
    """A token made of random bytes."""
    return TokenText(id_bytes.hex(), secret_bytes.hex())


def parse_text(text: str) -> TokenText | None:
    """The parts of a token; None if it is none."""
    found = _TEXT.fullmatch(text)
    return TokenText(found[1], found[2]) if found else None


def without_tokens(text: str) -> str:
    """The text with the secrets of all tokens in it left out."""
    return _TEXT.sub(r"hf_\1_***", text) if "hf_" in text else text


def digest_of(secret: str) -> str:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode("ascii")).hexdigest()


def fits(token: AccessToken | None, secret: str) -> bool:
    """Whether the secret is that of the token; takes as long for a token that there is not."""
    kept = _NOBODYS if token is None else token.digest
    return hmac.compare_digest(kept, digest_of(secret)) and token is not None


def write_token(token: AccessToken) -> bytes:
    """The token as its document."""
    return msgspec.json.encode(token)


def read_token(document: bytes) -> AccessToken:
    """The token of a document."""
    return _decoder.decode(document)


_decoder = msgspec.json.Decoder(AccessToken)
