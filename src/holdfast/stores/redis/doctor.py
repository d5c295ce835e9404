"""What servers say about themselves: whether they can be used, what the user may do there, what to report."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from redis.exceptions import NoPermissionError, ReadOnlyError, ResponseError

from holdfast.errors import BadUrl, HoldfastError, StoreError, StoreUnavailable
from holdfast.stores.contract import Finding
from holdfast.stores.redis.errors import too_old
from holdfast.stores.redis.keys import partition_key
from holdfast.stores.redis.scripts import script
from holdfast.stores.redis.urls import Address, RedisSettings

if TYPE_CHECKING:
    from holdfast.stores.redis.link import Link

#: Valkey calls itself Redis 7.2 in the field that clients look at.
OLDEST: Final = (7, 0)
_SETTINGS: Final = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "min-replicas-to-write")
_NEARLY_FULL: Final = 0.8


# -- the first meeting --------------------------------------------------------------------------------------


def first_questions(settings: RedisSettings) -> list[tuple[str | int, ...]]:
    """What a server is asked at the first meeting; none of it changes anything there."""
    key = f"{partition_key(settings.prefix, 0)}/permissions"
    return [
        ("INFO",),
        ("EVAL", script("permissions").text, 0, "", key),
        ("EVALSHA", "0" * 40, 0),
        ("BLPOP", key, "-1"),  # refused for its timeout, if it is allowed
        *([("WAIT", 0, 1)] if settings.durability != "local" else []),
    ]


def first_objection(answers: Sequence[Any], settings: RedisSettings) -> HoldfastError | None:
    """Why the server that gave these answers must not be used, if it must not."""
    info, allowed, *others = answers
    if not is_forbidden(info) and (problem := objection(fields(info), settings)):
        return problem
    names = [name for name, answer in zip(("EVALSHA", "BLPOP", "WAIT"), others, strict=False) if _is_refused(answer)]
    if _is_refused(allowed):
        names.append("EVAL")
    elif isinstance(allowed, ResponseError):
        raise allowed
    else:
        names += map(text, allowed)
    if is_forbidden(info) and "INFO" not in names:
        names.append("INFO")
    return _permission_error(names, settings) if names else None


def _permission_error(names: Sequence[str], settings: RedisSettings) -> StoreError:
    user = settings.username or "default"
    if "*" in names:
        keys = f"{{{settings.prefix}:*"
        return StoreError(f"{settings.url}: user {user} may not use the keys {keys}; run: ACL SETUSER {user} ~{keys}")
    allow = " ".join(f"+{name.lower()}" for name in names)
    return StoreError(f"{settings.url}: user {user} may not run {', '.join(names)}; run: ACL SETUSER {user} {allow}")


def _is_refused(answer: Any) -> bool:
    return isinstance(answer, NoPermissionError)


def fields(reply: Any) -> dict[str, str]:
    """The `name:value` lines of INFO and CLUSTER INFO."""
    lines = text(reply).splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}


def mapping(reply: Any) -> dict[str, str]:
    """A map, which comes as a flat list in the older protocol."""
    pairs = reply.items() if isinstance(reply, Mapping) else zip(reply[::2], reply[1::2], strict=True)
    return {text(name): text(value) for name, value in pairs}


def text(value: Any) -> str:
    """Bytes, or whatever else came, as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def server_name(info: Mapping[str, str]) -> str:
    """The server and its version, as people call it."""
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info.get('redis_version', 'of an unknown version')}"


def is_too_old(info: Mapping[str, str]) -> bool:
    """Whether the scripts cannot run there; a server that hides its version is believed."""
    numbers = info.get("redis_version", "").split(".")
    return all(number.isdecimal() for number in numbers[:2]) and tuple(map(int, numbers[:2])) < OLDEST


def objection(info: Mapping[str, str], settings: RedisSettings) -> HoldfastError | None:
    """Why this server must not be used, if it must not."""
    url = settings.url
    if info.get("redis_mode") == "sentinel":
        return BadUrl(f"{url}: this is a Sentinel; write redis+sentinel://HOST:PORT/SERVICE")
    if info.get("redis_mode") == "cluster" and settings.kind != "cluster":
        return BadUrl(f"{url}: this server is part of a cluster; write redis+cluster://HOST:PORT")
    if is_too_old(info):
        return too_old(url, server_name(info))
    policy = info.get("maxmemory_policy", "not shown by this server")
    if policy != "noeviction":
        return StoreError(
            f"{url}: maxmemory-policy is {policy}, so a full server would delete tasks; set maxmemory-policy noeviction"
        )
    return None


def check_master(role: Any) -> None:
    """Raises what a replica says to a write: a script that only reads would run there too, on old data."""
    if not is_forbidden(role) and text(role[0]) != "master":
        raise ReadOnlyError("this is a replica", status_code="READONLY")


def is_forbidden(answer: Any) -> bool:
    """Whether a managed server keeps this to itself; any other refusal is raised."""
    if isinstance(answer, NoPermissionError):
        return True
    if isinstance(answer, ResponseError):
        if "unknown command" in str(answer):
            return True
        raise answer
    return False


# -- the report ---------------------------------------------------------------------------------------------


async def probe(link: Link) -> list[Finding]:
    """One line for each thing that can be right or wrong, for each server that has tasks."""
    servers = await link.masters()
    if len(servers) == 1:
        return [*await _cluster(link), *await _server(link, servers[0])]
    each = await asyncio.gather(*(_one_of_many(link, server) for server in servers))
    return [*await _cluster(link), *itertools.chain(*each)]


async def _one_of_many(link: Link, server: Address) -> list[Finding]:
    """What one server says, or that it says nothing: the others may still be heard."""
    try:
        found = await _server(link, server)
    except StoreUnavailable:
        found = [Finding(level="problem", check="server", text="does not answer")]
    return [msgspec.structs.replace(finding, text=f"{server}: {finding.text}") for finding in found]


async def _server(link: Link, server: Address) -> list[Finding]:
    info = fields(await link.command("INFO", server=server))
    settings = await _server_settings(link, server)
    findings = [_version(info), _eviction(info), _memory(info)]
    if settings is None:
        text = "the server does not show its settings (CONFIG GET is refused); ask its operator about persistence"
        findings.append(Finding(level="note", check="persistence", text=text))
    else:
        findings += _persistence(settings)
    return [*findings, *_replication(link.settings, info, settings or {})]


async def _server_settings(link: Link, server: Address) -> Mapping[str, str] | None:
    try:
        return mapping(await link.command("CONFIG", "GET", *_SETTINGS, server=server))
    except StoreUnavailable:
        raise
    except StoreError:
        return None


def _version(info: Mapping[str, str]) -> Finding:
    if is_too_old(info):
        oldest = ".".join(map(str, OLDEST))
        text = f"{server_name(info)} is too old; use Redis {oldest}, Valkey 7.2, or newer"
        return Finding(level="problem", check="server", text=text)
    return Finding(level="ok", check="server", text=server_name(info))


def _eviction(info: Mapping[str, str]) -> Finding:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        text = f"maxmemory-policy is {policy}: a full server would delete tasks; set maxmemory-policy noeviction"
        return Finding(level="problem", check="eviction", text=text)
    return Finding(level="ok", check="eviction", text="noeviction: a full server refuses tasks and deletes none")


def _memory(info: Mapping[str, str]) -> Finding:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not limit:
        text = f"{used / 2**20:,.0f} MiB used, no maxmemory: a server that grows is ended by its system; set maxmemory"
        return Finding(level="note", check="memory", text=text)
    text = f"{used / 2**20:,.0f} of {limit / 2**20:,.0f} MiB used"
    if used > limit * _NEARLY_FULL:
        text += "; at 100 % new tasks are refused, so raise maxmemory or let the workers drain it"
        return Finding(level="warning", check="memory", text=text)
    return Finding(level="ok", check="memory", text=text)


def _persistence(settings: Mapping[str, str]) -> Iterator[Finding]:
    if settings.get("appendonly") != "yes":
        text = "appendonly no: what was recorded since the last snapshot is lost with the process; set appendonly yes"
        yield Finding(level="problem", check="persistence", text=text)
        return
    fsync = settings.get("appendfsync", "")
    texts = {
        "always": "appendfsync always: survives kill -9 and power loss",
        "everysec": "appendfsync everysec: up to 2 s are lost with the power, or with kill -9; set appendfsync always",
    }
    text = texts.get(fsync, f"appendfsync {fsync}: up to 30 s are lost with the power; set appendfsync always")
    yield Finding(level="ok" if fsync == "always" else "warning", check="persistence", text=text)
    if settings.get("no-appendfsync-on-rewrite") == "yes":
        text = "no-appendfsync-on-rewrite yes: nothing is synced during a rewrite; set no-appendfsync-on-rewrite no"
        yield Finding(level="warning", check="rewrite", text=text)


def _replication(ours: RedisSettings, info: Mapping[str, str], settings: Mapping[str, str]) -> Iterator[Finding]:
    if info.get("role", "master") != "master":
        text = "a replica, which takes no writes; name the master, or use redis+sentinel://"
        yield Finding(level="problem", check="replicas", text=text)
        return
    online = sum(
        "state=online" in value for name, value in info.items() if name.startswith("slave") and name[5:].isdecimal()
    )
    yield _replicas(ours, online)
    if ours.durability == "strict" and settings and settings.get("min-replicas-to-write") == "0":
        text = "min-replicas-to-write 0: a master that was cut off goes on giving out tasks; set it to 1, max-lag to 2"
        yield Finding(level="warning", check="cut off", text=text)


def _replicas(ours: RedisSettings, online: int) -> Finding:
    level = ours.durability
    if level == "local" and not online:
        return Finding(level="note", check="replicas", text="none: all is lost with the disk of this server")
    if level == "local":
        text = (
            f"{online}, not waited for: the last moments are lost in a failover; use ?durability=replicated or strict"
        )
        return Finding(level="note", check="replicas", text=text)
    if not online:
        return Finding(level="problem", check="replicas", text=f"none, but durability={level} waits for one; start one")
    if level == "replicated" and online > 1:
        text = (
            f"{online}, one is waited for: the other may be promoted without the last moments; use ?durability=strict"
        )
        return Finding(level="warning", check="replicas", text=text)
    return Finding(level="ok", check="replicas", text=f"{online}, as durability={level} needs")


async def _cluster(link: Link) -> list[Finding]:
    if link.settings.kind != "cluster":
        return []
    state = fields(await link.command("CLUSTER", "INFO"))
    covered = int(state.get("cluster_slots_ok", 0))
    if state.get("cluster_state") != "ok" or covered < 16_384:
        text = f"{state.get('cluster_state')}, {covered:,} of 16,384 slots served; look at CLUSTER NODES"
        return [Finding(level="problem", check="cluster", text=text)]
    return [Finding(level="ok", check="cluster", text=f"{state.get('cluster_size')} masters, all slots served")]
