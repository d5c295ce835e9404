"""From a Redis URL to settings: who to talk to, as whom, and how safe is safe enough."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote

from holdfast.core.ids import MAX_PARTITION
from holdfast.errors import BadUrl
from holdfast.stores.urls import Readers, deadline, durability, file, hidden, known_host, number, read_options

Kind = Literal["single", "sentinel", "cluster"]
Durability = Literal["local", "replicated", "strict"]

SCHEMES: Final[dict[str, tuple[Kind, bool]]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_EXAMPLES: Final[dict[Kind, str]] = {
    "single": "redis://localhost:6379/0",
    "sentinel": "redis+sentinel://host1:26379,host2:26379/service/0",
    "cluster": "redis+cluster://host1:7000,host2:7001",
}
_DEFAULT_PORTS: Final[dict[Kind, int]] = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,32}", re.ASCII)
_HOST = re.compile(r"\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]]+")


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """What a Redis URL says."""

    kind: Kind
    #: Fit for messages: the password is hidden.
    url: str
    #: The server, the Sentinels, or some nodes of the cluster.
    addresses: tuple[Address, ...]
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    #: The name under which the Sentinels know the master.
    service: str = ""
    database: int = 0
    durability: Durability = "local"
    #: How long WAIT may wait for the replicas before the call is sent again.
    wait_ms: int = 500
    #: How long a call is retried.
    deadline_ms: int = 5_000
    prefix: str = "hf"
    #: None: as many as the store finds right.
    partitions: int | None = None
    protocol: int = 3
    ca: str = ""


def parse_redis_url(url: str) -> RedisSettings:
    """The settings in this URL; `BadUrl` says in one line what to fix, without the password."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise BadUrl(f"{hidden(url)!r} is not a Redis URL; write {_EXAMPLES['single']}")
    kind, tls = SCHEMES[scheme]
    place, _, query = rest.partition("?")
    netloc, _, path = place.partition("/")
    login, _, hosts = netloc.rpartition("@")
    try:
        username, password = _login(login)
        service, database = _path(kind, path)
        return RedisSettings(
            kind=kind,
            url=hidden(url),
            addresses=_addresses(hosts, kind),
            tls=tls,
            username=username,
            password=password,
            service=service,
            database=database,
            **_options(query, tls),
        )
    except ValueError as error:
        raise BadUrl(f"{hidden(url)!r}: {error}") from None


def _login(text: str) -> tuple[str | None, str | None]:
    if not text:
        return None, None
    name, colon, password = text.partition(":")
    if not colon:
        raise ValueError("a user without a password; write user:password@host, or :password@host")
    return unquote(name) or None, unquote(password) or None


def _addresses(text: str, kind: Kind) -> tuple[Address, ...]:
    if "," in text and kind == "single":
        raise ValueError(f"more than one host; for a cluster write {_EXAMPLES['cluster']}")
    return tuple(_address(part, kind) for part in text.split(","))


def _address(text: str, kind: Kind) -> Address:
    found = _HOST.match(text)
    if not found:
        raise ValueError(
            f"a host is missing; write {_EXAMPLES[kind]}, and escape / ? # @ in a password as %2F %3F %23 %40"
        )
    if "%2f" in found[0].lower():
        raise ValueError(f"a unix socket, over which Redis is not reached here; write {_EXAMPLES[kind]}")
    host, port = known_host(found[0].strip("[]")), text[found.end() :]
    if not port:
        return Address(host, _DEFAULT_PORTS[kind])
    if not (port[0] == ":" and port[1:].isdecimal() and 1 <= int(port[1:]) <= 65_535):
        raise ValueError("a port must be a number from 1 to 65535; escape / ? # @ in a password as %2F %3F %23 %40")
    return Address(host, int(port[1:]))


def _path(kind: Kind, path: str) -> tuple[str, int]:
    """The service and the number of the database."""
    words = [unquote(word) for word in path.split("/")] if path else []
    service = ""
    if kind == "sentinel":
        service = words.pop(0) if words else ""
        if not service:
            raise ValueError(f"the name of the service is missing; write {_EXAMPLES['sentinel']}")
    if kind == "cluster" and any(words):
        raise ValueError("a cluster has one database only; leave the path out")
    number = words[0] if words and words[0] else "0"
    if len(words) > 1 or not (number.isascii() and number.isdecimal()):
        raise ValueError(f"the database must be a number; write {_EXAMPLES[kind]}")
    return service, int(number)


def _options(query: str, tls: bool) -> dict[str, Any]:
    found = read_options(query, _READERS)
    if "ca" in found and not tls:
        raise ValueError("option 'ca' needs TLS; write rediss:// instead of redis://")
    return found


def _prefix(name: str, text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise ValueError(f"{name}={text}: write up to 32 letters, digits, dots, dashes or underscores")
    return text


_READERS: Final[Readers] = {
    "durability": ("durability", durability),
    "wait_ms": ("wait_ms", number(1, 60_000)),
    "deadline": ("deadline_ms", deadline),
    "prefix": ("prefix", _prefix),
    "partitions": ("partitions", number(1, MAX_PARTITION + 1)),
    "protocol": ("protocol", number(2, 3)),
    "ca": ("ca", file),
}
