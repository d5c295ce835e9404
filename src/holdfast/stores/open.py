"""From a URL to a store."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from holdfast.clock import Clock, SystemClock
from holdfast.errors import BadUrl
from holdfast.stores.contract import Store

DEFAULT_URL = "sqlite:///holdfast.db"
_NOT_YET = frozenset({"redis", "rediss", "redis+sentinel", "redis+cluster", "postgresql", "postgres", "http", "https"})


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """The store behind this URL; nothing is connected to before the first call."""
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from holdfast.stores.sqlite.store import SqliteStore

        return SqliteStore(sqlite_path(url), url=redacted(url), clock=clock or SystemClock())
    if scheme in _NOT_YET:
        raise BadUrl(f"{redacted(url)}: this version of Holdfast keeps tasks in SQLite only; use {DEFAULT_URL}")
    raise BadUrl(f"{redacted(url)!r} is not a store URL; write sqlite:///file.db, or sqlite:// for memory")


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
    """The URL without its password, fit for messages and logs."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition(":")[0] + ":…"
    if "@" not in parts.netloc:
        return url
    user, _, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{name}:***@{host}" if ":" in user else f"{name}@{host}"))
