"""A server that comes back without its tail: producers notice, and send again what was acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from holdfast import Holdfast, TaskHandle
from holdfast.errors import StoreFull, UnknownTask
from tests.redis.faults.app import make_app
from tests.servers.flavours import FAST, Flavour
from tests.servers.redis_server import RedisServer

pytestmark = pytest.mark.alone

TASKS = 300
LARGE = "x" * 20_000


@pytest.fixture
def forgetful_server(flavour: Flavour) -> Iterator[RedisServer]:
    """Keeps only what it was told to save."""
    with RedisServer(flavour, profile={**FAST, "maxmemory-policy": "noeviction"}) as server:
        yield server


def known(app: Holdfast, handles: list[TaskHandle[int]]) -> int:
    """How many of these tasks the store has, by the word of this app."""
    return sum(_is_known(app, handle.task_id) for handle in handles)


def _is_known(app: Holdfast, task_id: str) -> bool:
    try:
        app.handle(task_id).status()
    except UnknownTask:
        return False
    return True


def test_what_a_server_forgot_is_sent_again(forgetful_server: RedisServer) -> None:
    producer, size = make_app(forgetful_server.url)
    onlooker, _ = make_app(forgetful_server.url)
    with producer, onlooker:
        kept = producer.enqueue_many(size.prepare(f"kept {number}") for number in range(TASKS))
        forgetful_server.command("SAVE")
        forgotten = producer.enqueue_many(size.prepare(f"forgotten {number}") for number in range(TASKS))
        forgetful_server.restart(kill=True)
        assert (known(onlooker, kept), known(onlooker, forgotten)) == (TASKS, 0)

        last = size.enqueue("this call notices")
        assert known(onlooker, [*kept, *forgotten, last]) == 2 * TASKS + 1
        assert forgetful_server.command("ZCARD", "{hf:0}/all") == 2 * TASKS + 1


def test_what_could_not_be_sent_again_is_not_forgotten_by_the_producer(forgetful_server: RedisServer) -> None:
    producer, size = make_app(forgetful_server.url)
    onlooker, _ = make_app(forgetful_server.url)
    with producer, onlooker:
        forgotten = producer.enqueue_many(size.prepare(LARGE) for _ in range(TASKS))
        forgetful_server.restart(kill=True)
        room = int(forgetful_server.info("memory")["used_memory"]) + 2 * 1024 * 1024
        forgetful_server.command("CONFIG", "SET", "maxmemory", room)
        with suppress(StoreFull):
            size.enqueue("this call notices, and there is not enough room for what was lost")
        assert known(onlooker, forgotten) < TASKS

        forgetful_server.command("CONFIG", "SET", "maxmemory", 0)
        size.enqueue("now there is room")
        assert known(onlooker, forgotten) == TASKS
