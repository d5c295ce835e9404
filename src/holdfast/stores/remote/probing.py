"""What can be said about the way to a gateway."""

from __future__ import annotations

from holdfast.stores.contract import Finding
from holdfast.stores.remote.urls import RemoteSettings

_LOOPBACK = ("localhost", "127.", "::1")


def findings(settings: RemoteSettings) -> list[Finding]:
    """Whether others can read along."""
    if settings.tls:
        return [Finding(level="ok", check="gateway", text=f"{settings.url} answers, and nobody can read along")]
    if settings.host.startswith(_LOOPBACK) or settings.token is None:
        return [Finding(level="ok", check="gateway", text=f"{settings.url} answers")]
    text = f"{settings.url}: the token travels in the clear; use https://, or a network in which nobody reads along"
    return [Finding(level="warning", check="gateway", text=text)]
