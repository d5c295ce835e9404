"""Why a server did not let us in: libpq gives no code then, only the server's words, the same for many versions."""

from __future__ import annotations

from typing import Final

from holdfast.stores.postgres.lines import TooOld
from holdfast.stores.postgres.urls import Address, Login

#: A mistake that stays one: what the server says, and what to do about it.
_MISTAKES: Final[tuple[tuple[str, str], ...]] = (
    ("password authentication failed", "wrong user or password; mend them in the URL"),
    ("SASL authentication failed", "wrong user or password; mend them in the URL"),
    ("no such user", "wrong user or password; mend them in the URL"),
    ("no password supplied", "the server wants a password; write postgresql://USER:PASSWORD@HOST/DATABASE"),
    ("authentication failed", "the server does not accept this user's way to log in; look at its pg_hba.conf"),
    ("no pg_hba.conf entry", "the server lets nobody in as {user} from here in this way; look at its pg_hba.conf"),
    ("pg_hba.conf rejects", "the server lets nobody in as {user} from here in this way; look at its pg_hba.conf"),
    ("no such database", "there is no database {database!r}; run: createdb {database}, or mend it in the URL"),
    ("is not permitted to log in", "the role {user} may not log in; ALTER ROLE {user} LOGIN"),
    ("permission denied for database", "{user} may not connect to {database}; GRANT CONNECT ON DATABASE {database}"),
    ("is not currently accepting connections", "the database {database} accepts no connections; ask its operator"),
    ("does not support SSL", "no TLS on this server; leave sslmode out of the URL, or set ssl = on there"),
    ("SSL required", "the server wants TLS; add ?sslmode=require to the URL"),
    ("certificate verify failed", "the server's certificate is not trusted; name its authority with ?sslrootcert=FILE"),
    ("self-signed certificate", "the server's certificate is not trusted; name its authority with ?sslrootcert=FILE"),
    ("does not match host name", "the server's certificate is for another host; mend the host in the URL"),
    (
        "root certificate file",
        "sslmode wants the authority of the server's certificate; name it with ?sslrootcert=FILE",
    ),
    (
        "invalid sslmode value",
        "sslmode is disable, allow, prefer, require, verify-ca or verify-full; mend it in the URL",
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
    ("failed to resolve", "the name is not known; mend it in the URL"),
    ("Connection refused", "nobody listens; start the server, or mend host and port in the URL"),
    ("No such file or directory", "no socket there; start the server, or mend the directory in the URL"),
    ("invalid response", "what listens does not talk like PostgreSQL; mend host and port in the URL"),
    ("expected authentication request", "what listens does not talk like PostgreSQL; mend host and port in the URL"),
    ("unexpectedly", "the connection was closed; look at the server's log"),
)


def mistake(login: Login, reason: BaseException) -> str | None:
    """What to mend, if this server would never let us in."""
    if isinstance(reason, TooOld):
        return str(reason)
    words = str(reason)
    names = {"user": login.user or "this user", "database": login.database}
    if "does not exist" in words and "database" in words:
        return "there is no database {database!r}; run: createdb {database}, or mend it in the URL".format(**names)
    if "does not exist" in words and "role" in words:
        return "there is no role {user}; run: createuser {user}, or mend it in the URL".format(**names)
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
