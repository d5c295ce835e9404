"""What servers say about themselves: INFO, maps in either protocol, versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from redis.exceptions import NoPermissionError, ReadOnlyError, ResponseError

from holdfast.errors import BadUrl, HoldfastError, StoreError
from holdfast.stores.redis.urls import RedisSettings

#: Valkey calls itself Redis 7.2 in the field that clients look at.
OLDEST: Final = (7, 0)


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
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        return StoreError(
            f"{url}: maxmemory-policy is {policy}, so a full server would delete tasks; set maxmemory-policy noeviction"
        )
    return None


def too_old(url: str, name: str = "a server older than Redis 6") -> StoreError:
    """The refusal of an old server."""
    return StoreError(f"{url}: this is {name}; Holdfast needs Redis 7.0, Valkey 7.2, or newer")


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
