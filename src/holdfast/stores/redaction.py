"""URLs that are fit for messages and logs."""

from __future__ import annotations


def hidden(url: str) -> str:
    """The URL without its password, even if the password has characters that should have been escaped."""
    scheme, _, rest = url.partition("://")
    login, at, tail = rest.rpartition("@")
    if not at:
        return url
    name, colon, _ = login.partition(":")
    # A gateway knows no users: whatever stands in front of it may be a token.
    named = colon and scheme not in {"http", "https"}
    return f"{scheme}://{name}:***@{tail}" if named else f"{scheme}://***@{tail}"
