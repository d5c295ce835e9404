"""From a URL to a store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, unquote_plus, urlsplit

from holdfast.clock import Clock, SystemClock
from holdfast.errors import BadUrl
from holdfast.runtime.threads import imported
from holdfast.stores.urls import hidden

if TYPE_CHECKING:
    from holdfast.stores.contract import Store

DEFAULT_URL = "sqlite:///holdfast.db"
_REDIS = frozenset({"redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"})
_POSTGRES = frozenset({"postgresql", "postgres"})
_REMOTE = frozenset({"http", "https"})
_KNOWN = frozenset({"sqlite"}) | _REDIS | _POSTGRES | _REMOTE
_FORMS = (
    f"write {DEFAULT_URL}, redis://localhost:6379/0, postgresql://user:password@localhost/database "
    "or https://TOKEN@holdfast.example"
)
#: Options that name a file, in URLs of any kind.
_FILES = frozenset({"ca", "sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile"})
#: A comma in front of another URL; those inside of one (the hosts of a cluster, a file name) stay.
_BETWEEN_URLS = re.compile(r",(?=[a-z][a-z0-9+]*://)")
#: What may stand between the two slashes and the path where no login does; PostgreSQL may leave the host out.
_HOSTS = re.compile(r"(?:\[[^]@]*\]|[^:@\[\]]+)(?::[0-9]{1,5})?")
_NO_HOST = re.compile(r"(?::[0-9]{1,5})?")


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """The store behind this URL, or over the partitions behind several, separated by commas.

    Nothing is connected to before the first call.
    """
    urls = split_urls(resolved(url))
    if len(urls) == 1:
        return _open_one(urls[0], clock)
    from holdfast.stores.sharded.store import ShardedStore

    if len(set(urls)) < len(urls):
        raise BadUrl(f"{redacted(url)!r} names a partition twice")
    return ShardedStore([_open_one(each, clock) for each in urls])


def split_urls(url: str) -> list[str]:
    """The URLs of a list: one for a single store, one a partition for a store over many."""
    urls: list[str] = []
    for part in _BETWEEN_URLS.split(url):
        if urls and _is_cut(urls[-1]):
            urls[-1] += f",{part}"
        else:
            urls.append(part)
    return urls


def _is_cut(url: str) -> bool:
    """Whether it ends in the middle of a login: the comma belongs to a password, which must not be shown."""
    scheme, _, rest = url.partition("://")
    place = rest.partition("?")[0].partition("/")[0]
    if scheme == "sqlite" or "@" in rest:
        return False
    return not (_HOSTS.fullmatch(place) or (scheme in _POSTGRES and _NO_HOST.fullmatch(place)) or "," in place)


def resolved(url: str) -> str:
    """The URL, or list of URLs, with the full path of each file: `os.chdir` later on changes nothing.

    `BadUrl` if it is of no known kind, so that a wrong URL is refused where it is written down.
    """
    return ",".join(map(_resolved_one, split_urls(url)))


def _resolved_one(url: str) -> str:
    scheme, colon, rest = url.partition(":")
    if scheme not in _KNOWN or not colon:
        raise BadUrl(f"{redacted(url)!r} is not a store URL; {_FORMS}")
    if not rest.startswith("//"):
        raise BadUrl(f"{redacted(url)!r} is not a store URL: two slashes are missing after {scheme}:; {_FORMS}")
    if scheme != "sqlite":
        return _with_full_paths(url)
    parts = urlsplit(url)
    relative = parts.path[1:]
    if not url.startswith("sqlite:///") or not relative or relative.startswith("/") or parts.query or parts.fragment:
        return url  # in memory, absolute already, or refused when it is opened
    return "sqlite:///" + _full_path(unquote(relative), url)


def _with_full_paths(url: str) -> str:
    """The URL with the full paths of the files, such as certificates, that its options name."""
    place, _, query = url.partition("?")
    if not query or "@" in query:
        return url  # the latter: a password with a question mark, which is refused when it is opened
    options: list[str] = []
    for option in query.split("&"):
        name, _, text = option.partition("=")
        path = unquote_plus(text)
        is_relative = name in _FILES and path not in {"", "system"} and not Path(path).is_absolute()
        options.append(f"{name}={_full_path(path, url)}" if is_relative else option)
    return f"{place}?{'&'.join(options)}"


def _full_path(path: str, url: str) -> str:
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        raise BadUrl(
            f"{redacted(url)!r} names a file in a folder that was deleted; write its full path, such as "
            "sqlite:////absolute/path/to/file.db"
        ) from None
    return quote(os.path.normpath(folder / path))


def _open_one(url: str, clock: Clock | None) -> Store:
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        options = {"url": redacted(url), "clock": clock or SystemClock()}
        return _opened("holdfast.stores.sqlite.store", "SqliteStore", sqlite_path(url), **options)
    if scheme in _REDIS:
        return _opened("holdfast.stores.redis", "open_redis", url, clock or SystemClock())
    if scheme in _POSTGRES:
        return _opened("holdfast.stores.postgres.urls", "open_postgres", url, clock or SystemClock())
    if scheme in _REMOTE:
        return _opened("holdfast.stores.remote.store", "open_remote", url)
    raise BadUrl(f"{redacted(url)!r} is not a store URL; {_FORMS}")


def _opened(module: str, function: str, *args: Any, **options: Any) -> Store:
    store: Store = getattr(imported(module), function)(*args, **options)
    return store


def sqlite_path(url: str) -> str:
    """The file of a `sqlite:` URL; empty for a store in memory."""
    parts = urlsplit(url)
    if not url.startswith("sqlite://"):
        raise BadUrl(f"{url!r} is not a store URL; write sqlite:///file.db or sqlite:////absolute/file.db")
    if parts.netloc:
        raise BadUrl(f"{redacted(url)!r} has too few slashes; write sqlite:///{parts.netloc}{parts.path}")
    if parts.query or parts.fragment:
        names = ", ".join(name for name, _ in parse_qsl(parts.query, keep_blank_values=True)) or parts.fragment
        raise BadUrl(f"{redacted(url)!r}: a sqlite URL takes no options ({names})")
    if parts.path == "/":
        raise BadUrl(f"{url!r} names no file; write sqlite:///file.db, or sqlite:// for memory")
    return unquote(parts.path[1:])


def redacted(url: str) -> str:
    """The URL, or list of URLs, without passwords, fit for messages and logs."""
    return ",".join(map(hidden, split_urls(url)))
