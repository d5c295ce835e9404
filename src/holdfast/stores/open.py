"""From a URL to a store."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.clock import Clock, SystemClock
from holdfast.errors import BadUrl
from holdfast.stores.contract import Store
from holdfast.stores.redaction import hidden

DEFAULT_URL = "sqlite:///holdfast.db"
_REDIS = frozenset({"redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"})
_POSTGRES = frozenset({"postgresql", "postgres"})
_REMOTE = frozenset({"http", "https"})
#: A comma in front of another URL; those inside of one (the hosts of a cluster, a file name) stay.
_BETWEEN_URLS = re.compile(r",(?=[a-z][a-z0-9+]*://)")


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """The store behind this URL, or over the partitions behind several, separated by commas.

    Nothing is connected to before the first call.
    """
    urls = split_urls(url)
    if len(urls) == 1:
        return _open_one(url, clock)
    from holdfast.stores.sharded.store import ShardedStore

    if len(set(urls)) < len(urls):
        raise BadUrl(f"{redacted(url)!r} names a partition twice")
    return ShardedStore([_open_one(each, clock) for each in urls])


def split_urls(url: str) -> list[str]:
    """The URLs of a list: one for a single store, one a partition for a store over many."""
    return _BETWEEN_URLS.split(url)


def _open_one(url: str, clock: Clock | None) -> Store:
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from holdfast.stores.sqlite.store import SqliteStore

        return SqliteStore(sqlite_path(url), url=redacted(url), clock=clock or SystemClock())
    if scheme in _REDIS:
        from holdfast.stores.redis.opening import open_redis

        return open_redis(url, clock or SystemClock())
    if scheme in _POSTGRES:
        from holdfast.stores.postgres.opening import open_postgres

        return open_postgres(url, clock or SystemClock())
    if scheme in _REMOTE:
        from holdfast.stores.remote.opening import open_remote

        return open_remote(url)
    raise BadUrl(
        f"{redacted(url)!r} is not a store URL; write {DEFAULT_URL}, redis://localhost:6379/0, "
        "postgresql://user:password@localhost/database or https://TOKEN@gateway.example"
    )


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
