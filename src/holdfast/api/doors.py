"""Which guard a server has: one that asks for tokens, whatever the address."""

from __future__ import annotations

import logging

from holdfast.admin import tokens
from holdfast.api.origins import is_loopback
from holdfast.api.tokens import TokenGuard
from holdfast.clock import Clock, SystemClock
from holdfast.core.access import TOKEN_KIND, TokenText
from holdfast.errors import BadOption, StoreUnavailable
from holdfast.stores.contract import Store

log = logging.getLogger("holdfast.api")


async def first_token(store: Store, host: str, *, clock: Clock | None = None) -> TokenText | None:
    """A token that may do everything, to be shown once, if the store has none; `BadOption` if others can reach us.

    Without a token nobody is let in, so a store that does not answer yet is nothing to stop for.
    """
    try:
        if is_loopback(host):
            return await tokens.create_first(store, now_ms=(clock or SystemClock()).now_ms())
        has_tokens = bool(await store.documents(TOKEN_KIND))
    except StoreUnavailable as error:
        log.warning("the store is not there yet, so nobody is let in until it is: %s", error)
        return None
    if not has_tokens:
        raise BadOption(
            f"--host {host} is refused while there is no token: make one with `holdfast token create --scope admin`"
        )
    return None


def make_guard(store: Store, *, clock: Clock | None = None) -> TokenGuard:
    """The guard of a server over this store."""
    return TokenGuard(store, clock=clock)
