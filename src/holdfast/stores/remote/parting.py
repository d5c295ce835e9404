"""The partitions behind a gateway, each as a store of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from holdfast.errors import StoreUnavailable
from holdfast.stores.contract import Store
from holdfast.stores.remote.link import Link
from holdfast.wire import calls
from holdfast.wire.calls import NoArguments, StoreCall

if TYPE_CHECKING:
    from holdfast.stores.remote.store import RemoteStore

A = TypeVar("A")

#: There is no other way to ask: a gateway that is busy is waited for, and one that is away holds nobody up for long.
_SECONDS: Final = 5.0


def partitions(store: RemoteStore, link: Link) -> Sequence[Store]:
    """One store each, the store itself if it has one partition only, and none if the token may not look after them."""
    urls = _asked(link, calls.PARTITIONS)
    if urls is None:
        return ()
    if len(urls) == 1:
        return [store]
    current = _asked(link, calls.PARTITION_MAP)
    version = 0 if current is None else current.version
    return [type(store)(link, partition=n, url=url, map_version=version) for n, url in enumerate(urls)]


def _asked(link: Link, call: StoreCall[NoArguments, A]) -> A | None:
    """The answer, or None if this token may not ask; in this very thread, since the contract lets nobody wait here."""
    answer = link.ask_now(call, call.write_request(NoArguments()), seconds=_SECONDS)
    if answer is None:
        raise StoreUnavailable(f"{link.settings.url}: the gateway does not answer; try again")
    return None if answer.status in {401, 403} else link.read(call, answer)
