"""What went wrong on the way to a server: whether a repeat can help, and what to tell people.

All our scripts may be run twice with the same arguments, so everything that may pass is repeated: what was certainly
not applied (a refusal before the script's first line) and what may have been (a lost reply) alike.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Final

from redis.exceptions import (
    AuthenticationError,
    ClusterCrossSlotError,
    InvalidResponse,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)

from holdfast.core.durations import format_ms
from holdfast.errors import BadUrl, DurabilityUnknown, HoldfastError, StoreError, StoreFull, StoreUnavailable
from holdfast.stores.redis.urls import Address, RedisSettings
from holdfast.stores.urls import speaks_tls, untrusted

#: How long a server is asked whether it speaks TLS.
_TLS_SECONDS: Final = 1.0
#: What an attempt can end with, other than an answer.
TROUBLES: Final = (RedisError, OSError, TimeoutError)

#: Refusals that pass by themselves or with a change of master, and what to do if they do not.
_PASSING: Final[dict[str, str]] = {
    "READONLY": "{at} is a replica, which takes no writes; name the master, or use redis+sentinel://",
    "LOADING": "{at} is still loading its data; try again in a while",
    "MASTERDOWN": "{at} has lost its master; look at the replication",
    "CLUSTERDOWN": "the cluster is down; look at CLUSTER INFO",
    "TRYAGAIN": "a slot is being moved to another server; try again when that is done",
    "ASK": "a slot is being moved to another server; try again when that is done",
    "MOVED": "the slots of the cluster keep moving; look at CLUSTER SLOTS",
    "BUSY": "{at} is busy with a long script of another client; look at SLOWLOG, or use SCRIPT KILL",
    "UNBLOCKED": "{at} has just become a replica; try again",
    "MISCONF": "{at} cannot write to its disk and takes no tasks; free some space and look at its log",
    "NOSCRIPT": "{at} forgets scripts at once; look for a client that calls SCRIPT FLUSH",
    "NOREPLICAS": "{at} takes no writes without its replicas (min-replicas-to-write); start the replicas",
}
#: The server says so in the middle of a script, when one of its keys has moved to another server already.
_SLOT_IS_LEAVING: Final = "non local key"
_CLUSTER_IS_DOWN: Final = "while the cluster is down"


class TooFewReplicas(RedisError):
    """The call was applied, but WAIT did not hear of as many replicas as the level asks for."""

    def __init__(self, confirmed: int, needed: int) -> None:
        super().__init__(f"{confirmed} of {needed} replicas")
        self.confirmed = confirmed
        self.needed = needed


class Unsuitable(RedisError):
    """A server that must not be used, as its answer to INFO shows; `refusal` is the error to raise."""

    def __init__(self, refusal: HoldfastError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class Failures:
    """The errors of one link in our words; no message has the password in it."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._url = settings.url
        #: The scripts that were answered. Once there is one, the URL is right: a refused login, a bad certificate or a
        #: server that must not be used is an outage then, which may pass, and so is a permission taken away.
        self.answered: set[str] = set()

    def hopeless(self, error: BaseException, script: str = "") -> HoldfastError | None:
        """The error to raise at once, if a repeat would end the same way."""
        refusal = self._objection(error, script)
        return None if refusal is None or self._may_pass(refusal, error, script) else refusal

    def exhausted(self, error: BaseException, address: Address | None, tried_ms: int) -> HoldfastError:
        """The error to raise when the deadline has passed, after this time."""
        time = format_ms(tried_ms)
        if (refusal := self._objection(error, "")) is not None:
            return StoreUnavailable(f"{refusal} (tried for {time})", tried_ms=tried_ms)
        if isinstance(error, TooFewReplicas):
            return DurabilityUnknown(
                f"{self._url}: recorded, but only {error.confirmed} of {error.needed} replicas confirmed it within "
                f"{time}; repeat with the same ids, and look at the replicas",
                tried_ms=tried_ms,
            )
        at = str(address) if address else " or ".join(map(str, self._settings.addresses))
        if isinstance(error, RedisError) and (advice := _PASSING.get(_code(error))):
            return StoreUnavailable(f"{self._url}: {advice.format(at=at)} (tried for {time})", tried_ms=tried_ms)
        return StoreUnavailable(f"{self._url}: {self._silence(error, at)} (tried for {time})", tried_ms=tried_ms)

    def _may_pass(self, refusal: HoldfastError, error: BaseException, script: str) -> bool:
        if isinstance(error, NoPermissionError):
            return script in self.answered
        return bool(self.answered) and (isinstance(refusal, BadUrl) or isinstance(error, Unsuitable))

    def _objection(self, error: BaseException, script: str) -> HoldfastError | None:
        """The error that says what to change, if something has to be changed."""
        if isinstance(error, Unsuitable):
            return error.refusal
        if isinstance(error, TooFewReplicas):
            return None
        if isinstance(error, AuthenticationError):
            return self._login_error(error)
        if isinstance(error, ResponseError):
            return self._refusal(error, script)
        return self._tls_error(error)

    def _refusal(self, error: ResponseError, script: str) -> HoldfastError | None:
        code = _code(error)
        if isinstance(error, MovedError) and self._settings.kind != "cluster":
            return BadUrl(f"{self._url}: this server is part of a cluster; write redis+cluster://HOST:PORT")
        if code in _PASSING:
            return None
        if isinstance(error, OutOfMemoryError) or code == "OOM":
            return StoreFull(store_full(self._url))
        if isinstance(error, NoPermissionError):
            return StoreError(f"{self._url}: {self._words(error)}; allow it in the server's ACL")
        if isinstance(error, ClusterCrossSlotError):
            return StoreError(f"{self._url}: a call with keys of several slots, which is a bug in Holdfast")
        return self._plain_refusal(error, script)

    def _plain_refusal(self, error: ResponseError, script: str) -> HoldfastError:
        words = self._words(error)
        if "DB index is out of range" in words or "invalid DB index" in words:
            number = self._settings.database
            return BadUrl(
                f"{self._url}: the server has no database {number}; choose a smaller number at the end of the URL"
            )
        if "unknown command" in words.lower() and "hello" in words.lower():
            return too_old(self._url)
        if "cluster support disabled" in words:
            return BadUrl(f"{self._url}: this server is not part of a cluster; write redis:// instead")
        if "No such master" in words:
            return BadUrl(f"{self._url}: the Sentinels know no service {self._settings.service!r}; fix it in the URL")
        if "unknown command 'SENTINEL'" in words:
            return BadUrl(f"{self._url}: this server is no Sentinel; name the Sentinels and their port, such as 26379")
        where = f"script {script} failed, which is a bug in Holdfast: " if "script:" in words else ""
        return StoreError(f"{self._url}: {where}{words}")

    def _login_error(self, error: AuthenticationError) -> HoldfastError:
        if _code(error) == "NOAUTH":
            return BadUrl(f"{self._url}: the server wants a password; write redis://:PASSWORD@HOST")
        if "without any password" in str(error):
            return BadUrl(f"{self._url}: the server has no password set, but the URL has one; leave it out")
        return BadUrl(f"{self._url}: wrong user or password; fix them in the URL")

    def _tls_error(self, error: BaseException) -> HoldfastError | None:
        for cause in _causes(error):
            if isinstance(cause, ssl.SSLCertVerificationError):
                return BadUrl(f"{self._url}: {untrusted(cause, '?ca=FILE')}")
        return None

    def _silence(self, error: BaseException, at: str) -> str:
        """What to say of a server that did not answer."""
        for cause in _causes(error):
            if isinstance(cause, socket.gaierror):
                return f"the name in {at} is not known; fix it in the URL"
            if isinstance(cause, ConnectionRefusedError) or "Connect call failed" in str(cause):
                return f"connection refused at {at}: start Redis or fix the host and port in the URL"
        if "max number of clients" in str(error):
            return f"{at} has too many clients; raise maxclients"
        if isinstance(error, InvalidResponse):
            return f"what listens at {at} does not talk like Redis; fix host and port in the URL"
        if isinstance(error, TimeoutError):
            return f"no answer from {at}"
        return f"{at} closed the connection"

    def _words(self, error: BaseException) -> str:
        """The server's own words on one line; an old server repeats what it was sent, the password too."""
        words = " ".join(str(error).split())
        password = self._settings.password
        # Only as a whole word: a short one may be a part of others.
        return re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", "***", words) if password else words


def store_full(url: str) -> str:
    """What to say when the server has no room."""
    return f"{url}: the server's memory is full; raise maxmemory, or let the workers drain it"


def _code(error: RedisError) -> str:
    """The first word of a refusal."""
    text = str(error)
    if _SLOT_IS_LEAVING in text:
        return "TRYAGAIN"
    if _CLUSTER_IS_DOWN in text:
        return "CLUSTERDOWN"
    return error.status_code or text.partition(" ")[0]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def too_old(url: str, name: str = "a server older than Redis 6") -> StoreError:
    """The refusal of an old server."""
    return StoreError(f"{url}: this is {name}; Holdfast needs Redis 7.0, Valkey 7.2, or newer")


async def misunderstanding(settings: RedisSettings, address: Address) -> BadUrl | None:
    """What to change in the URL, if the server speaks the other language."""
    if settings.tls and await _speaks_plainly(address):
        return BadUrl(f"{settings.url}: no TLS on this port; write redis:// instead of rediss://, or name the TLS port")
    if not settings.tls and await speaks_tls(*address):
        return BadUrl(f"{settings.url}: the server wants TLS on this port; write rediss:// instead of redis://")
    return None


async def _speaks_plainly(address: Address) -> bool:
    try:
        async with asyncio.timeout(_TLS_SECONDS):
            reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(b"PING\r\n")
                return (await reader.read(1)) in {b"+", b"-"}
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return False
