"""The short script for a single task leaves behind exactly what the script for a batch does."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

import redis as redis_py
from holdfast.clock import SystemClock
from holdfast.core.ids import IdSource
from holdfast.core.retry import RunPolicy
from holdfast.core.task import NewTask
from holdfast.stores.open import open_store
from holdfast.stores.redis import arguments
from holdfast.stores.redis.store import RedisStore
from holdfast.testing.clock import SteppedClock
from tests.servers.redis_server import RedisServer

IDS = IdSource(SystemClock().now_ms, os.urandom)

TASKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "large": {"payload": b"x" * 100_000},
    "request_id": {"request_id": "order:1"},
    "headers": {"headers": {"traceparent": "00-1-2-01"}},
    "high": {"priority": 7},
    "low": {"priority": -7},
    "policy": {"policy": RunPolicy(max_attempts=3, result_ttl_ms=5_000, dead_letter_ttl_ms=6_000)},
    "due": {"delay_ms": 0},
}


def a_task(**fields: Any) -> NewTask:
    return NewTask(task_id=IDS.task_id(), type="send", queue="mail", **({"payload": b"{}"} | fields))


@pytest.mark.parametrize("case", TASKS)
def test_both_scripts_write_the_same(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    task = a_task(**TASKS[case])
    short = dumped(redis_server, [task])
    monkeypatch.setattr(arguments, "one_task", lambda task: None)
    assert dumped(redis_server, [task]) == short


@pytest.mark.parametrize("fields", [{"delay_ms": 5_000}, {"run_at_ms": 10**13}, {"policy": RunPolicy(expires_ms=9)}])
def test_what_is_not_ready_at_once_goes_the_other_way(fields: dict[str, Any]) -> None:
    assert arguments.one_task(a_task(**fields)) is None


def test_a_known_task_is_told_as_by_a_batch(redis_server: RedisServer) -> None:
    task, other = a_task(request_id="order:1"), a_task(request_id="order:1", payload=b"[]")

    async def sent() -> list[tuple[str, bool, bool]]:
        store = open_store(redis_server.url)
        try:
            answers = [(await store.enqueue([each]))[0] for each in (task, task, other)]
            return [(answer.task_id, answer.created, answer.conflict is not None) for answer in answers]
        finally:
            await store.close()

    assert asyncio.run(sent()) == [
        (task.task_id, True, False),
        (task.task_id, False, False),
        (task.task_id, False, True),
    ]


def dumped(server: RedisServer, tasks: list[NewTask]) -> dict[str, object]:
    """All that stands on an empty server after these tasks were enqueued; times to live as whether there is one."""
    client: Any = redis_py.Redis.from_url(server.url)
    client.flushall()

    async def enqueue() -> None:
        store = open_store(server.url, clock=SteppedClock())
        assert isinstance(store, RedisStore)
        await store.enqueue(tasks)
        await store.close()

    asyncio.run(enqueue())
    found: dict[str, object] = {}
    for key in client.keys("*"):
        kind = client.type(key).decode()
        value = {
            "hash": client.hgetall,
            "zset": lambda k: client.zrange(k, 0, -1, withscores=True),
            "list": lambda k: client.lrange(k, 0, -1),
            "set": client.smembers,
            "string": client.get,
        }[kind](key)
        found[key.decode()] = (value, client.pttl(key) > 0)
    client.close()
    return found
