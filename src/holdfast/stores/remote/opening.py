"""From the URL of a gateway to a store."""

from __future__ import annotations

from holdfast.stores.contract import Store
from holdfast.stores.remote.link import Link
from holdfast.stores.remote.store import RemoteStore
from holdfast.stores.remote.urls import parse_remote_url


def open_remote(url: str) -> Store:
    """The store behind the gateway of this URL; nothing is connected to before the first call."""
    return RemoteStore(Link(parse_remote_url(url)))
