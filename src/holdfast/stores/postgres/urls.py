"""From a PostgreSQL URL to a store, and to settings: which server, as which role, and how durable."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote

from holdfast.clock import Clock
from holdfast.errors import BadUrl
from holdfast.stores.contract import Store
from holdfast.stores.urls import deadline, durability, hidden, known_host, number

Durability = Literal["local", "replicated", "strict"]

SCHEMES: Final = ("postgresql", "postgres")
_EXAMPLE: Final = "postgresql://user:password@localhost:5432/database"
_DEFAULT_PORT: Final = 5432
_ESCAPING: Final = "escape / ? # @ in a password as %2F %3F %23 %40"
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}", re.ASCII)
_HOST = re.compile(r"\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]]*")
#: Options of libpq that are passed on as they are.
_PASSED_ON: Final = frozenset(
    {
        "host",
        "port",
        "options",
        "connect_timeout",
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "sslcrl",
        "sslnegotiation",
        "channel_binding",
        "passfile",
    }
    | {"gssencmode", "krbsrvname", "require_auth", "application_name"}
    | {"keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout"}
)


class Address(NamedTuple):
    """Where a server listens; a host that begins with a slash is the directory of a socket."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """One way in: the servers, any of which may be the primary, and who we are there."""

    addresses: tuple[Address, ...]
    database: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    #: Options of libpq, such as sslmode.
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSettings:
    """What a PostgreSQL URL says."""

    #: Fit for messages: passwords are hidden.
    url: str
    login: Login
    schema: str = "holdfast"
    durability: Durability = "local"
    #: How long a call is retried.
    deadline_ms: int = 5_000
    #: Prepared statements: faster, but not behind a pooler in transaction mode.
    prepare: bool = False
    #: Where to listen for wake-ups: the same server, another way to it (past a pooler), or nowhere.
    listen: Login | Literal["same", "poll"] = "same"
    #: The most connections of one event loop for calls.
    connections: int = 10

    @property
    def quoted_schema(self) -> str:
        """The name of the schema as SQL, whatever word it is."""
        return quoted(self.schema)

    @property
    def lock_timeout_ms(self) -> int:
        """How long a statement waits for a lock before it is refused and sent again; shorter than a try."""
        return max(20, min(2_000, self.deadline_ms // 5))


def quoted(schema: str) -> str:
    """The name of a schema as SQL; a reserved word such as `user` is a name like any other in quotes."""
    return f'"{schema}"'


def open_postgres(url: str, clock: Clock) -> Store:
    """The store in the database of this URL; nothing is connected to before the first call."""
    try:
        from holdfast.stores.postgres.calls import Database
        from holdfast.stores.postgres.store import PostgresStore
    except ImportError as missing:
        # Also raised by psycopg itself, when it finds no libpq to work with.
        if missing.name is not None and not missing.name.startswith("psycopg"):
            raise
        raise BadUrl("postgresql:// needs the psycopg package; run: pip install 'psycopg[binary]'") from None
    return PostgresStore(Database(parse_postgres_url(url)), clock=clock)


def parse_postgres_url(url: str) -> PostgresSettings:
    """The settings in this URL; `BadUrl` says in one line what to fix, without the password."""
    shown = _shown(url)
    try:
        place, options = _divided(url)
        ours: dict[str, Any] = {}
        theirs: dict[str, str] = {}
        for name, text in options:
            _take(name, text, ours, theirs)
        return PostgresSettings(url=shown, login=_login(place, theirs), **ours)
    except ValueError as error:
        raise BadUrl(f"{shown!r}: {error}") from None


def _divided(url: str) -> tuple[str, list[tuple[str, str]]]:
    """What stands before the question mark, without the scheme, and the options behind it."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise ValueError(f"not a PostgreSQL URL; write {_EXAMPLE}")
    place, _, query = rest.partition("?")
    return place, parse_qsl(query, keep_blank_values=True)


def _take(name: str, text: str, ours: dict[str, Any], theirs: dict[str, str]) -> None:
    if name in _READERS:
        field_name, read = _READERS[name]
        if field_name in ours:
            raise ValueError(f"option {name!r} is given twice")
        ours[field_name] = read(name, text)
        return
    _pass_on(name, text, theirs)


def _pass_on(name: str, text: str, theirs: dict[str, str]) -> None:
    if name == "target_session_attrs":
        if text not in {"read-write", "primary"}:
            raise ValueError(f"{name}={text}: tasks can only be kept on the primary; leave it out")
        return
    if name in {"user", "password", "dbname"}:
        raise ValueError(f"{name!r} has its place before the question mark; write {_EXAMPLE}")
    if not name.isidentifier():
        raise ValueError(f"what follows the question mark is no option; {_ESCAPING}")
    if name not in _PASSED_ON:
        raise ValueError(f"unknown option {name!r}; there are {', '.join(_READERS)}, and those of libpq for TLS")
    if name in theirs:
        raise ValueError(f"option {name!r} is given twice")
    if name == "connect_timeout" and not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{name}={text}: write a whole number of seconds; deadline=5s bounds the whole call")
    theirs[name] = text


def _login(place: str, options: dict[str, str]) -> Login:
    netloc, _, path = place.partition("/")
    who, _, hosts = netloc.rpartition("@")
    user, _, password = who.partition(":")
    database = unquote(path)
    if not database or "/" in database:
        raise ValueError(f"the name of the database is missing; write {_EXAMPLE}; {_ESCAPING}")
    return Login(
        addresses=_addresses(_hosts_text(hosts), options.pop("host", ""), options.pop("port", "")),
        database=database,
        user=unquote(user) or None,
        password=unquote(password) or None,
        options=options,
    )


def _addresses(before: str, hosts: str, ports: str) -> tuple[Address, ...]:
    """The servers, named before the question mark, or as libpq has it behind it, each with its port or all with one."""
    if hosts and before.startswith(":") and not ports:
        before, ports = "", before[1:]
    if hosts and before:
        raise ValueError("a host before and behind the question mark; leave one out")
    found = [_address(part) for part in (hosts or before).split(",")]
    if not ports:
        return tuple(found)
    if any(address.port != _DEFAULT_PORT for address in found):
        raise ValueError("a port before and behind the question mark; leave one out")
    each = [_port(part) for part in ports.split(",")]
    if len(each) not in {1, len(found)}:
        raise ValueError(f"port={ports}: write one port, or one for each of the {len(found)} hosts")
    each *= len(found) if len(each) == 1 else 1
    return tuple(Address(address.host, port) for address, port in zip(found, each, strict=True))


def _hosts_text(text: str) -> str:
    """Hosts as they are; the directory of a socket is written with %2F in a URL."""
    return text.replace("%2F", "/").replace("%2f", "/")


def _address(text: str) -> Address:
    if text.startswith("/"):
        directory, _, port = text.partition(":")
        return Address(directory, _port(port))
    found = _HOST.match(text)
    host = found[0].strip("[]") if found else ""
    if found is None or not host:
        raise ValueError(f"a host is missing; write {_EXAMPLE}; {_ESCAPING}")
    rest = text[found.end() :]
    if rest and rest[0] != ":":
        raise ValueError(f"a port must be a number from 1 to 65535; {_ESCAPING}")
    return Address(known_host(host), _port(rest[1:] if rest else ""))


def _port(text: str) -> int:
    if not text:
        return _DEFAULT_PORT
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 65_535):
        raise ValueError(f"a port must be a number from 1 to 65535; {_ESCAPING}")
    return int(text)


def _shown(url: str) -> str:
    """The URL without its password and without that of the URL in its `listen` option."""
    before, mark, query = url.partition("?")
    if "@" in query and "listen=" not in query:
        return hidden(url)  # a question mark in a password: everything up to the last @ may be part of it
    options = [_shown_option(option) for option in query.split("&")]
    return hidden(before) + mark + "&".join(options)


def _shown_option(option: str) -> str:
    name, _, text = option.partition("=")
    if name == "password":
        return f"{name}=***"
    return f"{name}={hidden(unquote(text))}" if name == "listen" else option


# -- how the text of each option is read ---------------------------------------------------------------------


def _schema(name: str, text: str) -> str:
    if not _SCHEMA.fullmatch(text) or text.startswith("pg_"):
        raise ValueError(f"{name}={text}: write up to 48 small letters, digits or underscores, a letter first")
    return text


def _switch(name: str, text: str) -> bool:
    if text not in {"on", "off"}:
        raise ValueError(f"{name}={text}: write on or off")
    return text == "on"


def _listen(name: str, text: str) -> Login | str:
    if text in {"same", "poll"}:
        return text
    if not text.startswith(tuple(f"{scheme}://" for scheme in SCHEMES)):
        raise ValueError(f"{name}={hidden(text)}: write same, poll, or the URL of the server past the pooler")
    place, options = _divided(text)
    theirs: dict[str, str] = {}
    for option, value in options:
        _pass_on(option, value, theirs)
    return _login(place, theirs)


#: The options of a URL: the field that each one sets, and how its text is read.
_READERS: Final[dict[str, tuple[str, Callable[[str, str], Any]]]] = {
    "schema": ("schema", _schema),
    "durability": ("durability", durability),
    "deadline": ("deadline_ms", deadline),
    "prepare": ("prepare", _switch),
    "listen": ("listen", _listen),
    "connections": ("connections", number(1, 1_000)),
}
