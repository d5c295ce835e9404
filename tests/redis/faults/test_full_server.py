"""A server whose memory is full takes no new tasks, lets the workers drain it, and takes new ones again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from subprocess import CompletedProcess

import pytest

from holdfast import TaskHandle
from holdfast.core.task import State
from holdfast.errors import StoreFull
from holdfast.producer.task_type import TaskType
from tests.redis.faults.app import make_app
from tests.servers.flavours import FAST, Flavour
from tests.servers.redis_server import RedisServer
from tests.support import eventually, run_holdfast, run_worker

APP = "tests.redis.faults.app:app"
ROOM_BYTES = 8 * 1024 * 1024
TEXT = "x" * 20_000

pytestmark = pytest.mark.alone


@pytest.fixture
def small_server(flavour: Flavour) -> Iterator[RedisServer]:
    with RedisServer(flavour, profile={**FAST, "maxmemory-policy": "noeviction"}) as server:
        server.command("CONFIG", "SET", "maxmemory", int(server.info("memory")["used_memory"]) + ROOM_BYTES)
        yield server


def enqueue_until_full(size: TaskType[[str], int]) -> tuple[list[TaskHandle[int]], StoreFull]:
    """The tasks that found room, and the error of the one that did not."""
    handles: list[TaskHandle[int]] = []
    while True:
        try:
            handles.append(size.enqueue(TEXT))
        except StoreFull as full:
            return handles, full


def is_taken(size: TaskType[[str], int]) -> TaskHandle[int] | None:
    try:
        return size.enqueue(TEXT)
    except StoreFull:
        return None


def refusal(url: str) -> CompletedProcess[str] | None:
    """The refusal of one more task; None if there was room for it, since a connection that ends leaves some."""
    done = run_holdfast("enqueue", "size", "--force", "--args", f'{{"text": "{TEXT}"}}', url=url)
    return done if done.returncode else None


def test_a_full_server_is_drained_and_takes_tasks_again(small_server: RedisServer) -> None:
    app, size = make_app(small_server.url)
    with app:
        handles, full = enqueue_until_full(size)
        assert len(handles) > 50
        assert re.fullmatch(r"redis://127\.0\.0\.1:\d+: the server's memory is full; .*", str(full))
        assert {handle.status().state for handle in handles} == {State.READY}

        refused = eventually(lambda: refusal(small_server.url), 60, "a task is refused")
        assert refused is not None
        assert (refused.returncode, refused.stdout) == (1, "")
        assert len(refused.stderr.splitlines()) == 1
        assert "memory is full" in refused.stderr

        with run_worker(APP, small_server.url, "--concurrency", "20") as worker:
            # Nothing of what was recorded is lost: each one ends, and is then deleted with its result.
            eventually(lambda: drained(small_server), 60, "all tasks have ended")
            again = eventually(lambda: is_taken(size), 60, "a task is taken again")
            assert again is not None
            assert again.result(timeout=30) == len(TEXT)
            assert "full" not in worker.output()


def drained(server: RedisServer) -> bool:
    counts = server.command("HGETALL", "{hf:0}/n")
    return not any(name.endswith(("/ready", "/claimed")) for name in counts[::2])
