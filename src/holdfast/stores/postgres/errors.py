"""What went wrong with a call: whether a repeat can help, and what to tell people.

All our functions may be run twice with the same arguments, so everything that may pass is repeated: what was certainly
not applied (a refusal, a server that is starting) and what may have been (a lost reply, a wait for a standby that was
broken off) alike. libpq gives no code for a failed login, only the server's text, the same for many versions.
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
from holdfast.stores.postgres.connection import NoPrimary, NoStandbys, TooOld, Unconfirmed
from holdfast.stores.postgres.urls import Address, Login, PostgresSettings

#: What an attempt can end with, other than an answer.
TROUBLES: Final = (psycopg.Error, OSError, TimeoutError)

#: Refusals that pass by themselves or with a change of primary, and what to do if they do not.
_PASSING: Final[dict[str, str]] = {
    "40001": "{at}: transactions keep colliding; try again in a while",
    "40P01": "{at}: transactions wait for each other; look at the server's log",
    "55P03": "{at}: another session holds a lock on what we need; look at pg_stat_activity and pg_blocking_pids()",
    "53300": "{at}: too many connections; raise max_connections, or put pgbouncer in front",
    "53200": "{at}: the server is out of memory; look at its log",
    "57014": "{at}: our statements keep being cancelled; look at statement_timeout and at the server's log",
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
_NO_PERMISSION: Final = "42501"
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
        #: The functions that were answered. Once there is one, the URL is right: a refused login or a bad certificate
        #: is an outage then, which may pass, and so is a permission taken away.
        self.answered: set[str] = set()

    def hopeless(self, error: BaseException, function: str = "") -> HoldfastError | None:
        """The error to raise at once, if a repeat would end the same way."""
        refusal = self._objection(error, function)
        return None if refusal is None or self._may_pass(refusal, error, function) else refusal

    def _may_pass(self, refusal: HoldfastError, error: BaseException, function: str) -> bool:
        if getattr(error, "sqlstate", None) == _NO_PERMISSION:
            return function in self.answered
        return bool(self.answered) and (isinstance(refusal, BadUrl) or isinstance(error, NoPrimary))

    def _objection(self, error: BaseException, function: str) -> HoldfastError | None:
        """The error that says what to change, if something has to be changed."""
        if isinstance(error, NoPrimary):
            return self._mistake(error)
        if not isinstance(error, psycopg.Error):
            return None
        if error.sqlstate is None:
            # A driver that refuses an argument has not asked the server; a connection that broke says so.
            passing = isinstance(error, psycopg.OperationalError)
            return None if passing else StoreError(f"{self._url}: {function}: {_words(error)}")
        return self._refusal(error, error.sqlstate, function)

    def exhausted(self, error: BaseException, tried_ms: int) -> HoldfastError:
        """The error to raise when the deadline has passed."""
        return self._told(error, tried_ms)

    def once(self, error: BaseException) -> HoldfastError:
        """The error to raise for what is tried only once."""
        return self.hopeless(error) or self._told(error)

    def is_about_the_server(self, error: BaseException) -> bool:
        """Whether other connections to it are in doubt too."""
        if isinstance(error, (Unconfirmed, NoStandbys)):
            return False
        code = getattr(error, "sqlstate", None)
        return code is None or code in _SERVER_CHANGES

    def _told(self, error: BaseException, tried_ms: int = 0) -> HoldfastError:
        tried = f" (tried for {format_ms(tried_ms)})" if tried_ms else ""
        at = " or ".join(map(str, self._settings.login.addresses))
        if isinstance(error, Unconfirmed):
            return DurabilityUnknown(
                f"{self._url}: recorded, but no synchronous standby has confirmed it; repeat with the same ids, and "
                f"look at pg_stat_replication{tried}",
                tried_ms=tried_ms,
            )
        refusal = self._objection(error, "")
        return StoreUnavailable(f"{refusal or f'{self._url}: {self._trouble(error, at)}'}{tried}", tried_ms=tried_ms)

    def _trouble(self, error: BaseException, at: str) -> str:
        if isinstance(error, NoStandbys):
            return f"{at}: no synchronous standby, without which durability=strict writes nothing; start one"
        if isinstance(error, NoPrimary):
            return "; ".join(self._connect_error(address, reason) for address, reason in error.reasons)
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
        if code == _NO_PERMISSION:
            return StoreError(f"{self._url}: {words}; GRANT it, or have the owner of schema {schema} do it")
        if code.startswith("53"):
            return StoreFull(f"{self._url}: the server has no room left ({words}); free some space on its disk")
        if code in _DAMAGED:
            return StoreCorrupt(f"{self._url}: {words}; stop, and restore the database")
        where = f"function {function} failed: " if function else ""
        return StoreError(f"{self._url}: {where}{words}")

    def _mistake(self, error: NoPrimary) -> HoldfastError | None:
        """What to fix, if none of the servers would ever let us in."""
        advices = [mistake(self._settings.login, reason) for _, reason in error.reasons]
        if None in advices:
            return None
        too_old = isinstance(error.reasons[0][1], TooOld)
        return (StoreError if too_old else BadUrl)(f"{self._url}: {advices[0]}")

    def _connect_error(self, address: Address, reason: BaseException) -> str:
        advice = mistake(self._settings.login, reason)
        return f"{address}: {advice}" if advice else trouble(address, reason)


def _words(error: BaseException) -> str:
    """What the error says, on one line."""
    return " ".join(str(error).split())


#: A mistake that stays one: what the server says, and what to do about it.
_MISTAKES: Final[tuple[tuple[str, str], ...]] = (
    ("password authentication failed", "wrong user or password; fix them in the URL"),
    ("SASL authentication failed", "wrong user or password; fix them in the URL"),
    ("no such user", "wrong user or password; fix them in the URL"),
    ("no password supplied", "the server wants a password; write postgresql://USER:PASSWORD@HOST/DATABASE"),
    ("authentication failed", "the server does not accept this user's way to log in; look at its pg_hba.conf"),
    ("no pg_hba.conf entry", "the server does not let {user} in from here in this way; look at its pg_hba.conf"),
    ("pg_hba.conf rejects", "the server does not let {user} in from here in this way; look at its pg_hba.conf"),
    ("no such database", "there is no database {database!r}; run: createdb {database}, or fix it in the URL"),
    ("is not permitted to log in", "the role {user} may not log in; ALTER ROLE {user} LOGIN"),
    ("permission denied for database", "{user} may not connect to {database}; GRANT CONNECT ON DATABASE {database}"),
    ("is not currently accepting connections", "the database {database} accepts no connections; ask its operator"),
    ("does not support SSL", "no TLS on this server; leave sslmode out of the URL, or set ssl = on there"),
    ("SSL required", "the server wants TLS; add ?sslmode=require to the URL"),
    ("certificate has expired", "the server's certificate has expired; renew it on the server"),
    ("certificate is not yet valid", "the server's certificate is not valid yet; look at the clocks of both sides"),
    (  # libpq does not say what is wrong with it
        "certificate verify failed",
        "the server's certificate is not trusted; name its authority with ?sslrootcert=FILE, or renew it if it has "
        "expired",
    ),
    ("self-signed certificate", "the server's certificate is not trusted; name its authority with ?sslrootcert=FILE"),
    ("does not match host name", "the server's certificate is for another host; fix the host in the URL"),
    (
        "root certificate file",
        "sslmode wants the authority of the server's certificate; name it with ?sslrootcert=FILE",
    ),
    (
        "invalid sslmode value",
        "sslmode is disable, allow, prefer, require, verify-ca or verify-full; fix it in the URL",
    ),
    ("unsupported startup parameter", "the pooler does not know an option of the URL; leave it out"),
)
#: Passes by itself, or with a change of primary: what the server says, and what to say of it if it does not.
_TROUBLES: Final[tuple[tuple[str, str], ...]] = (
    ("read-only", "a standby, which takes no writes; name the primary in the URL, or all servers"),
    ("starting up", "still starting; try again in a while"),
    ("not yet accepting", "still starting; try again in a while"),
    ("recovery mode", "recovering from a crash; try again in a while"),
    ("shutting down", "shutting down; start it again"),
    ("too many connections", "too many connections; raise the limit of the role or the database"),
    ("too many clients", "too many connections; raise max_connections, or put pgbouncer in front"),
    ("connection slots are reserved", "too many connections; raise max_connections, or put pgbouncer in front"),
    ("failed to resolve", "the name is not known; fix it in the URL"),
    ("Connection refused", "connection refused: start PostgreSQL or fix the host and port in the URL"),
    ("No such file or directory", "no socket there; start the server, or fix the directory in the URL"),
    ("invalid response", "what listens does not talk like PostgreSQL; fix host and port in the URL"),
    ("expected authentication request", "what listens does not talk like PostgreSQL; fix host and port in the URL"),
    ("unexpectedly", "the connection was closed; look at the server's log"),
)


def mistake(login: Login, reason: BaseException) -> str | None:
    """What to fix, if this server would never let us in."""
    if isinstance(reason, TooOld):
        return str(reason)
    words = str(reason)
    names = {"user": login.user or "this user", "database": login.database}
    if "does not exist" in words and "database" in words:
        return "there is no database {database!r}; run: createdb {database}, or fix it in the URL".format(**names)
    if "does not exist" in words and "role" in words:
        return "there is no role {user}; run: createuser {user}, or fix it in the URL".format(**names)
    for sign, advice in _MISTAKES:
        if sign in words:
            return advice.format(**names)
    return None


def trouble(address: Address, reason: BaseException) -> str:
    """What to say of a server that did not let us in this time."""
    words = " ".join(str(reason).split())
    for sign, text in _TROUBLES:
        if sign in words:
            return f"{address}: {text}"
    if isinstance(reason, TimeoutError) or "timeout expired" in words:
        return f"{address}: no answer"
    return f"{address}: {words.partition(' failed: ')[2] or words}"
