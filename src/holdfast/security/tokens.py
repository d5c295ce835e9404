"""How often something may happen."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final, NamedTuple, Self

import msgspec

from holdfast.errors import BadOption

_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600}
_RATE = re.compile(r"([1-9][0-9]{0,8})/([smh])", re.ASCII)


class Rate(msgspec.Struct, frozen=True):
    """`count` times in `seconds`, spread as the caller likes."""

    count: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `100/s`, `600/m`, `10/h`."""
        found = _RATE.fullmatch(text)
        if found is None:
            raise BadOption(f"rate: {text!r:.80} is refused: write 100/s, 600/m or 10/h")
        return cls(int(found[1]), _SECONDS[found[2]])

    def __str__(self) -> str:
        units = {seconds: unit for unit, seconds in _SECONDS.items()}
        return f"{self.count}/{units[self.seconds]}"


class Bucket:
    """What is left of a rate: full at first, and filled up again evenly."""

    __slots__ = ("_at_ms", "_left", "rate")

    def __init__(self, rate: Rate, now_ms: int) -> None:
        self.rate = rate
        #: In parts of which one time costs as many as the rate has milliseconds: whole numbers do not drift.
        self._left = rate.count * rate.seconds * 1_000
        self._at_ms = now_ms

    def take(self, now_ms: int) -> int:
        """0 if one was left and is taken; else the number of ms after which there is one."""
        cost = self.rate.seconds * 1_000
        passed_ms = max(0, now_ms - self._at_ms)
        self._left = min(self.rate.count * cost, self._left + passed_ms * self.rate.count)
        self._at_ms = max(now_ms, self._at_ms)
        if self._left >= cost:
            self._left -= cost
            return 0
        return -((self._left - cost) // self.rate.count)


# -- access --------------------------------------------------------------------------------------------------


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
