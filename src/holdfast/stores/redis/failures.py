"""What went wrong on the way to a server: whether a repeat can help, and what to tell people.

All our scripts may be run twice with the same arguments, so everything that may pass is repeated: what was certainly
not applied (a refusal before the script's first line) and what may have been (a lost reply) alike.
"""

from __future__ import annotations

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
from holdfast.stores.redis.info import too_old
from holdfast.stores.redis.urls import Address, RedisSettings

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
    "BUSY": "{at} is busy with a long script of somebody; look at SLOWLOG, or use SCRIPT KILL",
    "UNBLOCKED": "{at} has just become a replica; try again",
    "MISCONF": "{at} cannot write to its disk and takes no tasks; free some space and look at its log",
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


class Failures:
    """The errors of one link in our words; no message has the password in it."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._url = settings.url

    def hopeless(self, error: BaseException, script: str = "") -> HoldfastError | None:
        """The error to raise at once, if a repeat would end the same way."""
        if isinstance(error, TooFewReplicas):
            return None
        if isinstance(error, AuthenticationError):
            return self._login_error(error)
        if isinstance(error, ResponseError):
            return self._refusal(error, script)
        return self._tls_error(error)

    def exhausted(self, error: BaseException, address: Address | None) -> HoldfastError:
        """The error to raise when time is up."""
        time = format_ms(self._settings.deadline_ms)
        if isinstance(error, TooFewReplicas):
            return DurabilityUnknown(
                f"{self._url}: recorded, but only {error.confirmed} of {error.needed} replicas confirmed it within "
                f"{time}; repeat with the same ids, and look at the replicas"
            )
        at = str(address) if address else " or ".join(map(str, self._settings.addresses))
        if isinstance(error, RedisError) and (advice := _PASSING.get(_code(error))):
            return StoreUnavailable(f"{self._url}: {advice.format(at=at)} (tried for {time})")
        return StoreUnavailable(f"{self._url}: {self._silence(error, at)} (tried for {time})")

    def _refusal(self, error: ResponseError, script: str) -> HoldfastError | None:
        code = _code(error)
        if isinstance(error, MovedError) and self._settings.kind != "cluster":
            return BadUrl(f"{self._url}: this server is part of a cluster; write redis+cluster://HOST:PORT")
        if code in _PASSING:
            return None
        if isinstance(error, OutOfMemoryError) or code == "OOM":
            return StoreFull(f"{self._url}: the server's memory is full; raise maxmemory, or let the workers drain it")
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
            return BadUrl(f"{self._url}: the Sentinels know no service {self._settings.service!r}; mend it in the URL")
        if "unknown command 'SENTINEL'" in words:
            return BadUrl(f"{self._url}: this server is no Sentinel; name the Sentinels and their port, such as 26379")
        where = f"script {script} failed, which is a bug in Holdfast: " if "script:" in words else ""
        return StoreError(f"{self._url}: {where}{words}")

    def _login_error(self, error: AuthenticationError) -> HoldfastError:
        if _code(error) == "NOAUTH":
            return BadUrl(f"{self._url}: the server wants a password; write redis://:PASSWORD@HOST")
        if "without any password" in str(error):
            return BadUrl(f"{self._url}: the server has no password set, but the URL has one; leave it out")
        return BadUrl(f"{self._url}: wrong user or password; mend them in the URL")

    def _tls_error(self, error: BaseException) -> HoldfastError | None:
        for cause in _causes(error):
            if isinstance(cause, ssl.SSLCertVerificationError):
                return BadUrl(
                    f"{self._url}: the server's certificate is not trusted ({cause.verify_message}); "
                    "name its authority with ?ca=FILE"
                )
        return None

    def _silence(self, error: BaseException, at: str) -> str:
        """What to say of a server that did not answer."""
        for cause in _causes(error):
            if isinstance(cause, socket.gaierror):
                return f"the name in {at} is not known; mend it in the URL"
            if isinstance(cause, ConnectionRefusedError) or "Connect call failed" in str(cause):
                return f"nobody listens at {at}; start the server, or mend host and port in the URL"
        if "max number of clients" in str(error):
            return f"{at} has too many clients; raise maxclients"
        if isinstance(error, InvalidResponse):
            return f"what listens at {at} does not talk like Redis; mend host and port in the URL"
        if isinstance(error, TimeoutError):
            return f"no answer from {at}"
        return f"{at} closed the connection"

    def _words(self, error: BaseException) -> str:
        """The server's own words on one line; an old server repeats what it was sent, the password too."""
        words = " ".join(str(error).split())
        password = self._settings.password
        return words.replace(password, "***") if password else words


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
