"""URLs that are fit for messages and logs."""

from __future__ import annotations


def hidden(url: str) -> str:
    """The URL without its password, even if the password has characters that should have been escaped."""
    scheme, _, rest = url.partition("://")
    login, at, tail = rest.rpartition("@")
    if not at:
        return url
    name, colon, _ = login.partition(":")
    return f"{scheme}://{name}:***@{tail}" if colon else f"{scheme}://***@{tail}"
