"""What went wrong on the way to a server: whether a repeat can help, and what to tell people.

All our functions may be run twice with the same arguments, so everything that may pass is repeated: what was certainly
not applied (a refusal, a server that is starting) and what may have been (a lost reply, a wait for a standby that was
broken off) alike.
"""

from __future__ import annotations

from typing import Final

import psycopg

from holdfast.core.durations import format_ms
from holdfast.errors import (
    BadUrl,
    DurabilityUnknown,
    HoldfastError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from holdfast.stores.postgres.doors import mistake, trouble
from holdfast.stores.postgres.lines import NoPrimary, NoStandbys, TooOld, Unconfirmed
from holdfast.stores.postgres.urls import Address, PostgresSettings

#: What an attempt can end with, other than an answer.
TROUBLES: Final = (psycopg.Error, OSError, TimeoutError)

#: Refusals that pass by themselves or with a change of primary, and what to do if they do not.
_PASSING: Final[dict[str, str]] = {
    "40001": "{at}: transactions keep colliding; try again in a while",
    "40P01": "{at}: transactions wait for each other; look at the server's log",
    "55P03": "{at}: another session holds a lock on what we need; look at pg_stat_activity and pg_blocking_pids()",
    "53300": "{at}: too many connections; raise max_connections, or put pgbouncer in front",
    "53200": "{at}: the server is out of memory; look at its log",
    "57014": "{at}: somebody keeps cancelling our statements; look at statement_timeout and at the server's log",
    "57P01": "{at}: shutting down; start it again",
    "57P02": "{at}: recovering from a crash; look at its log",
    "57P03": "{at}: still starting; try again in a while",
    "57P04": "{at}: the database was dropped",
    "25006": "{at}: a standby, which takes no writes; name the primary in the URL, or all servers",
    "25P03": "{at}: our transaction rested too long; try again",
    "0A000": "{at}: the schema was changed meanwhile; try again",
}
#: After these the server is another one, or soon will be: its other connections are not used either.
_SERVER_CHANGES: Final = frozenset({"25006", "57P01", "57P02", "57P03", "57P04"})
_MISSING: Final = frozenset({"3F000", "42P01", "42883", "42703"})
_STATEMENT_IS_GONE: Final = frozenset({"26000", "42P05", "08P01"})
_DAMAGED: Final = frozenset({"XX001", "XX002"})


class Raised(StoreError):
    """A refusal of one of our own functions: `code` is an SQLSTATE that begins with HF."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


class NotMigrated(StoreError):
    """The schema is not there, or is older than this version of Holdfast."""


class Failures:
    """The errors of one database in our words; no message has the password in it."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._url = settings.url

    def hopeless(self, error: BaseException, function: str = "") -> HoldfastError | None:
        """The error to raise at once, if a repeat would end the same way."""
        if isinstance(error, NoPrimary):
            return self._mistake(error)
        if not isinstance(error, psycopg.Error):
            return None
        if error.sqlstate is None:
            # A driver that refuses an argument has not asked the server; a connection that broke says so.
            passing = isinstance(error, psycopg.OperationalError)
            return None if passing else StoreError(f"{self._url}: {function}: {_words(error)}")
        return self._refusal(error, error.sqlstate, function)

    def exhausted(self, error: BaseException) -> HoldfastError:
        """The error to raise when time is up."""
        return self._told(error, f" (tried for {format_ms(self._settings.deadline_ms)})")

    def once(self, error: BaseException) -> HoldfastError:
        """The error to raise for what is tried only once."""
        return self.hopeless(error) or self._told(error, "")

    def is_about_the_server(self, error: BaseException) -> bool:
        """Whether other connections to it are in doubt too."""
        if isinstance(error, (Unconfirmed, NoStandbys)):
            return False
        code = getattr(error, "sqlstate", None)
        return code is None or code in _SERVER_CHANGES

    def _told(self, error: BaseException, tried: str) -> HoldfastError:
        at = " or ".join(map(str, self._settings.login.addresses))
        if isinstance(error, Unconfirmed):
            return DurabilityUnknown(
                f"{self._url}: recorded, but no synchronous standby has confirmed it; repeat with the same ids, and "
                f"look at pg_stat_replication{tried}"
            )
        return StoreUnavailable(f"{self._url}: {self._trouble(error, at)}{tried}")

    def _trouble(self, error: BaseException, at: str) -> str:
        if isinstance(error, NoStandbys):
            return f"{at}: no synchronous standby, without which durability=strict writes nothing; start one"
        if isinstance(error, NoPrimary):
            return "; ".join(self._at_the_door(address, reason) for address, reason in error.reasons)
        if isinstance(error, TimeoutError):
            return f"{at}: no answer"
        code = getattr(error, "sqlstate", None)
        if code in _PASSING:
            return _PASSING[code].format(at=at)
        return f"{at}: the connection was closed" if code is None else f"{at}: {_words(error)}"

    def _refusal(self, error: psycopg.Error, code: str, function: str) -> HoldfastError | None:
        """What the server says to a statement, if it would say so again."""
        if code in _STATEMENT_IS_GONE and self._settings.prepare:
            return BadUrl(f"{self._url}: a pooler loses prepared statements; leave prepare=on out of the URL")
        if code in _PASSING or code.startswith("08"):
            return None
        if code.startswith("HF"):
            return Raised(code, error.diag.message_primary or "")
        return self._plain_refusal(error, code, function)

    def _plain_refusal(self, error: psycopg.Error, code: str, function: str) -> HoldfastError:
        words = error.diag.message_primary or _words(error)
        schema = self._settings.schema
        if code in _MISSING:
            return NotMigrated(f"{self._url}: {words}; run: holdfast migrate")
        if code == "42501":
            return StoreError(f"{self._url}: {words}; GRANT it, or have the owner of schema {schema} do it")
        if code.startswith("53"):
            return StoreFull(f"{self._url}: the server has no room left ({words}); free some space on its disk")
        if code in _DAMAGED:
            return StoreCorrupt(f"{self._url}: {words}; stop, and restore the database")
        where = f"function {function} failed: " if function else ""
        return StoreError(f"{self._url}: {where}{words}")

    def _mistake(self, error: NoPrimary) -> HoldfastError | None:
        """What to mend, if none of the servers would ever let us in."""
        advices = [mistake(self._settings.login, reason) for _, reason in error.reasons]
        if None in advices:
            return None
        too_old = isinstance(error.reasons[0][1], TooOld)
        return (StoreError if too_old else BadUrl)(f"{self._url}: {advices[0]}")

    def _at_the_door(self, address: Address, reason: BaseException) -> str:
        advice = mistake(self._settings.login, reason)
        return f"{address}: {advice}" if advice else trouble(address, reason)


def _words(error: BaseException) -> str:
    """What the error says, on one line."""
    return " ".join(str(error).split())
