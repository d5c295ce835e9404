"""Where each task stands and which claims it had, read from the keys of Redis servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from tests.servers.redis_server import RedisServer

import redis
from chaos.snapshot import Reading, Snapshot
from holdfast.core.task import State

_PAGE: Final = 1_000


def keys_of(masters: Callable[[], Sequence[RedisServer]]) -> Reading:
    """Reads the keys of all masters that there are by then."""

    def read(snapshot: Snapshot) -> None:
        for master in masters():
            with master.client(decode_responses=False) as client:
                for key in client.scan_iter(match="*/all", count=_PAGE):
                    _read_partition(client, key.decode().removesuffix("/all"), snapshot)

    return read


def _read_partition(client: redis.Redis, base: str, snapshot: Snapshot) -> None:
    members = _members(client, f"{base}/all")
    for name in ("due", "claims"):
        _note(snapshot, _members(client, f"{base}/{name}"), name)
    for state in State:
        _note(snapshot, _members(client, f"{base}/done/{state}"), f"done/{state}")
    for key in client.scan_iter(match=f"{base}/ready/*", count=_PAGE):
        _note(snapshot, _members(client, key.decode()), "ready")
    for ids in _chunks(members):
        _read_claims(client, base, ids, snapshot)


def _members(client: redis.Redis, key: str) -> list[str]:
    found: Any = client.zrange(key, 0, -1)
    return [member.decode() for member in found]


def _note(snapshot: Snapshot, members: Iterable[str], place: str) -> None:
    for member in members:
        snapshot.places[member].append(place)


def _read_claims(client: redis.Redis, base: str, ids: Sequence[str], snapshot: Snapshot) -> None:
    pipeline = client.pipeline(transaction=False)
    for task_id in ids:
        pipeline.hmget(f"{base}/t/{task_id}", "t", "d")
        pipeline.lrange(f"{base}/h/{task_id}", 0, -1)
    replies = pipeline.execute()
    for task_id, (token, delivery), history in zip(ids, replies[::2], replies[1::2], strict=True):
        tokens = snapshot.tokens[task_id]
        for entry in history:
            number, _attempt, ended_token, *_ = msgspec.msgpack.decode(entry)
            tokens[int(number)] = ended_token
        if token:
            tokens[int(delivery)] = token.decode()


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(ids), _PAGE):
        yield ids[first : first + _PAGE]
