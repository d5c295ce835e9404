"""What the server's settings survive and what they do not, when `holdfast doctor` asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import AsyncConnection

from holdfast.core.durations import format_ms
from holdfast.stores.contract import Finding
from holdfast.stores.postgres.calls import Database
from holdfast.stores.postgres.connection import Connection
from holdfast.stores.postgres.urls import PostgresSettings
from holdfast.stores.sqltext import load_statements

#: A transaction that is older than this slows the queue down for all clients.
OLD_TRANSACTION_SECONDS: Final = 60.0
_MEBIBYTE: Final = 1_048_576
_ISOLATION: Final = "read committed"

Rows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Seen:
    """What the server told."""

    settings: Mapping[str, str]
    standbys: Rows
    horizon: Rows
    slots: Rows
    prepared: Rows
    feedback: Rows
    pooled: bool


async def probe(database: Database, *, old_transaction_seconds: float = OLD_TRANSACTION_SECONDS) -> list[Finding]:
    """One line for each thing that can be right or wrong."""

    async def look(connection: AsyncConnection[Any]) -> Seen:
        return await _look(connection, old_transaction_seconds)

    seen = await database.run(look, safe=False)
    ours = database.settings
    return [
        Finding(level="ok", check="server", text=f"PostgreSQL {seen.settings.get('server_version', '?')}"),
        *_persistence(seen.settings),
        *_standbys(ours, seen),
        *_pooler(ours, seen),
        *_vacuum(seen),
        Finding(
            level="note",
            check="disk",
            text="a full disk refuses new tasks; a full disk under pg_wal stops the server: watch its free space",
        ),
    ]


async def _look(connection: AsyncConnection[Any], old_seconds: float) -> Seen:
    statements = load_statements(__package__ or "", "doctor.sql")

    async def rows(name: str, *values: Any) -> Rows:
        return await (await connection.execute(statements[name].encode(), values or None)).fetchall()

    return Seen(
        settings={name: value or "" for name, value in await rows("settings")},
        standbys=await rows("standbys"),
        horizon=await rows("horizon", old_seconds),
        slots=await rows("slots"),
        prepared=await rows("prepared"),
        feedback=await rows("feedback"),
        pooled=isinstance(connection, Connection) and connection.pooled,
    )


def _persistence(settings: Mapping[str, str]) -> Iterator[Finding]:
    dangers = {
        "fsync": "fsync off: a power cut or a crash of the machine may damage all data; set fsync = on",
        "full_page_writes": "full_page_writes off: a power cut may leave torn pages; set full_page_writes = on",
    }
    found = [text for name, text in dangers.items() if settings.get(name) == "off"]
    yield from (Finding(level="problem", check="persistence", text=text) for text in found)
    if not found:
        yield Finding(level="ok", check="persistence", text="fsync on: survives kill -9 and power loss")
    if settings.get("synchronous_commit") == "off":
        text = (
            "synchronous_commit off: what we must keep is committed safely all the same, but a task that is enqueued "
            "in a transaction of yours can be lost with the power; set synchronous_commit = on"
        )
        yield Finding(level="warning", check="commits", text=text)


def _standbys(ours: PostgresSettings, seen: Seen) -> Iterator[Finding]:
    level, names = ours.durability, seen.settings.get("synchronous_standby_names", "")
    waited_for = sum(state in {"sync", "quorum"} for _, _, state in seen.standbys)
    if level == "local":
        text = f"{len(seen.standbys)}, not waited for: the last moments are lost in a failover; use ?durability=strict"
        none = "none: all is lost with the disk of this server"
        yield Finding(level="note", check="standbys", text=text if seen.standbys else none)
    elif not names:
        text = (
            f"synchronous_standby_names is empty: durability={level} "
            f"{'writes nothing' if level == 'strict' else 'waits for no standby'}; set it, or switch Patroni's "
            "synchronous_mode and synchronous_mode_strict on"
        )
        yield Finding(level="problem", check="standbys", text=text)
    elif not waited_for and seen.standbys and all(state == "?" for _, _, state in seen.standbys):
        text = "they are there, but this user may not see more; GRANT pg_monitor to it"
        yield Finding(level="note", check="standbys", text=text)
    elif not waited_for:
        text = f"no standby of {names!r} is connected: every safe call waits until its deadline; start one"
        yield Finding(level="problem", check="standbys", text=text)
    else:
        yield Finding(level="ok", check="standbys", text=f"{waited_for} synchronous, as durability={level} needs")


def _pooler(ours: PostgresSettings, seen: Seen) -> Iterator[Finding]:
    if not seen.pooled:
        return
    if ours.listen == "same":
        text = "in the way, so idle workers look once a second; name the server itself with ?listen=postgresql://…"
        yield Finding(level="warning", check="pooler", text=text)
    else:
        yield Finding(level="ok", check="pooler", text="in the way, as the URL says")
    if (isolation := seen.settings.get("default_transaction_isolation", _ISOLATION)) != _ISOLATION:
        text = (
            f"default_transaction_isolation is {isolation}, also for calls behind a pooler, where they collide; "
            f"ALTER ROLE … SET default_transaction_isolation = '{_ISOLATION}' for this user"
        )
        yield Finding(level="warning", check="pooler", text=text)
    if seen.settings.get("statement_timeout", "0") != "0":
        text = "statement_timeout cuts waits for standbys short behind a pooler; set it to 0 for this user"
        yield Finding(level="warning", check="pooler", text=text)


def _vacuum(seen: Seen) -> Iterator[Finding]:
    if seen.settings.get("autovacuum") == "off":
        text = "off: dead rows are never cleared away, and everything grows slow; set autovacuum = on"
        yield Finding(level="problem", check="autovacuum", text=text)
    culprits = list(_culprits(seen))
    yield from (Finding(level="warning", check="dead rows", text=f"kept by {culprit}") for culprit in culprits)
    if not culprits:
        yield Finding(level="ok", check="dead rows", text="no session keeps them from being cleared away")


def _culprits(seen: Seen) -> Iterator[str]:
    for pid, application, user, state, seconds in seen.horizon:
        who = f"{application or 'a client'} of {user}, pid {pid}"
        yield f"a transaction open for {_age(seconds)} ({who}, {state}); end it: SELECT pg_terminate_backend({pid})"
    for gid, owner, seconds in seen.prepared:
        yield f"a transaction of {owner} prepared {_age(seconds)} ago; end it: ROLLBACK PREPARED '{gid}'"
    for slot, size in seen.slots:
        kept = f"and {size / _MEBIBYTE:,.0f} MiB of WAL with them"
        yield f"an unused replication slot, {kept}; drop it: SELECT pg_drop_replication_slot('{slot}')"
    for application, transactions in seen.feedback:
        yield f"a long query on the standby {application} (hot_standby_feedback), {transactions:,} transactions ago"


def _age(seconds: float) -> str:
    return format_ms(round(seconds) * 1_000)
