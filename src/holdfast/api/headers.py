"""Headers that every answer has: for browsers that were led here, whoever asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: A route that needs another value, as a page needs its own policy, sets it, and that stays.
SECURITY_HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_TLS_ONLY: Final = (b"strict-transport-security", b"max-age=31536000")
#: Which server this is, and of what version, helps nobody but those who look for old ones.
_SILENCED: Final = frozenset({b"server"})

Headers = list[tuple[bytes, bytes]]


def secured(headers: Iterable[tuple[bytes, bytes]], *, tls: bool) -> Headers:
    """The headers of an answer with ours among them."""
    given = [(name, value) for name, value in headers if name.lower() not in _SILENCED]
    names = {name.lower() for name, _ in given}
    ours = (*SECURITY_HEADERS, _TLS_ONLY) if tls else SECURITY_HEADERS
    return [*given, *(header for header in ours if header[0] not in names)]
