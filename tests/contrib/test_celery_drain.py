"""Messages of a real Celery on a real Redis move into a store: none lost, none twice, whatever is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.contrib.celery import Celery
from holdfast.contrib.celery import Task as CeleryTask
from holdfast.contrib.celery.drain import BATCH, Drain, Target
from holdfast.core.task import State, Task
from holdfast.stores.contract import Query
from holdfast.testing import run_due
from tests.contrib.celery_apps import native
from tests.contrib.celery_apps.producer import ETA, ORDER
from tests.servers.fixtures import redis_server  # noqa: F401  (a fixture)
from tests.servers.redis_server import RedisServer
from tests.support import ROOT, environment, holdfast_command, run_holdfast

APP = "tests.contrib.celery_apps.native:app"
MANY = 1_000


@pytest.fixture
def broker(redis_server: RedisServer) -> RedisServer:  # noqa: F811
    return redis_server


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


def send(broker: RedisServer, kind: str, count: int = 1) -> None:
    command = [sys.executable, "-m", "tests.contrib.celery_apps.producer", broker.url, kind, str(count)]
    ended = subprocess.run(
        command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr


def drained(broker: RedisServer, store: str, *more: str) -> tuple[int, dict[str, Any]]:
    ended = run_holdfast("celery", "drain", broker.url, "--app", APP, "--json", *more, url=store)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def tasks_of(store: str) -> dict[str, Task]:
    """The tasks of a store by their request_id, each of which it has once."""
    with Holdfast(store) as app:

        async def listed() -> Iterator[Task]:
            found: list[Task] = []
            cursor = None
            while True:
                page = await app.store.find(Query(states=frozenset(State), limit=BATCH, cursor=cursor))
                found += page.tasks
                cursor = page.cursor
                if cursor is None:
                    return iter(found)

        tasks = list(app._link.run(listed()))
    by_id = {task.request_id or "": task for task in tasks}
    assert len(by_id) == len(tasks), "a message became two tasks"
    return by_id


def numbers(tasks: dict[str, Task]) -> set[int]:
    return {json.loads(task.payload)["number"] for task in tasks.values()}


def test_a_drain_that_is_killed_again_and_again_loses_nothing_and_repeats_nothing(
    broker: RedisServer, store: str
) -> None:
    send(broker, "plain", MANY)
    client = broker.client()
    kills = 0
    while (waiting := client.llen("celery")) > 0:
        command = holdfast_command("celery", "drain", broker.url, "--app", APP)
        process = subprocess.Popen(command, env=environment(store), cwd=ROOT, stdout=subprocess.DEVNULL)
        while process.poll() is None and client.llen("celery") > waiting - 2 * BATCH:
            pass
        process.kill()
        process.wait(10)
        kills += client.llen("celery") > 0
    assert kills, "no drain was killed in the middle"
    code, report = drained(broker, store)
    assert (code, report["left"]) == (0, 0)
    assert client.keys("holdfast-drain:*") == []
    tasks = tasks_of(store)
    assert set(tasks) == {f"id-{number}" for number in range(MANY)}
    assert numbers(tasks) == set(range(MANY))


def test_a_crash_between_the_store_and_the_holding_list_repeats_nothing(
    broker: RedisServer, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, "plain", 3)
    real = Drain._enqueued

    def crash(self: Drain, queue: str, ready: Any, left: Any) -> Any:
        list(real(self, queue, ready, left))
        raise KeyboardInterrupt

    with Holdfast(store) as app:
        app.task(name="shop.mail")(native.mail.function)
        target = Target(app, celery=False)
        with monkeypatch.context() as patch:
            patch.setattr(Drain, "_enqueued", crash)
            with pytest.raises(KeyboardInterrupt):
                Drain(broker.client(), target).queue("celery")
        assert broker.client().llen("celery") == 0
        again = Drain(broker.client(), target)
        assert again.held(["celery"]) == 3
        again.queue("celery")
        assert again.held(["celery"]) == 0
    assert set(tasks_of(store)) == {"id-0", "id-1", "id-2"}


def test_options_are_kept_and_what_only_celery_can_handle_stays_in_its_queue(broker: RedisServer, store: str) -> None:
    send(broker, "options")
    before = broker.client().lrange("celery", 0, -1)
    code, looked = drained(broker, store, "--queues", "celery,mail", "--dry-run")
    assert (code, looked["moved"], looked["left"]) == (1, 8, 6)
    assert broker.client().lrange("celery", 0, -1) == before

    code, report = drained(broker, store, "--queues", "celery,mail")
    assert (code, report["moved"], report["expired"], report["left"]) == (1, 8, 1, 6)
    reasons = {each["id"]: each["reason"] for each in report["shown"]}
    assert reasons["unknown"] == "the app has no task shop.unknown"
    assert "content type is application/x-python-serialize" in reasons["pickled"]
    assert reasons["linked"] == "it has a follow-up (link)"
    assert report["reasons"]["it has a follow-up (chain)"] == 1
    assert report["reasons"]["it is a member of a group or chord"] == 2
    kept = broker.client().lrange("celery", 0, -1)
    assert kept == [message for message in before if message in kept], "the order has changed"
    assert len(kept) == 6

    tasks = tasks_of(store)
    assert set(tasks) == {"eta", "priority", "limits", "headers", "expires", "mail-queue", "types", "retried"}
    assert tasks["eta"].run_at_ms == round(ETA.timestamp() * 1000)
    assert tasks["priority"].priority == -4
    assert (tasks["limits"].policy.timeout_ms, tasks["limits"].policy.hard_timeout_ms) == (3_000, 9_000)
    assert tasks["headers"].headers == {"tenant": "a", "json:shard": "3", "celery-id": "headers"}
    assert 3_500_000 < (tasks["expires"].policy.expires_ms or 0) <= 3_600_000
    assert json.loads(tasks["types"].payload) == {"order": str(ORDER), "amount": "1.50", "at": "2031-01-31T09:00:00Z"}
    assert tasks["retried"].headers["celery-retries"] == "2"


def test_tasks_of_the_compatibility_layer_keep_their_celery_id_and_count_their_retries(
    broker: RedisServer, store: str
) -> None:
    send(broker, "options")
    app = Celery("layer", holdfast_url=store)
    seen: dict[str, Any] = {}

    @app.task(name="shop.mail", bind=True)
    def mail(self: CeleryTask, number: int) -> None:
        seen[self.request.id or ""] = self.request.retries, self.request.headers, number

    @app.task(name="shop.price", bind=True)
    def price(self: CeleryTask, *args: Any) -> None:
        seen[self.request.id or ""] = args

    moving = Drain(broker.client(), Target(app.holdfast, celery=True))
    moving.queue("celery")
    assert moving.report.moved == 7
    run_due(app.holdfast)
    app.close()
    assert set(seen) == {"priority", "limits", "headers", "expires", "types", "retried"}
    assert seen["retried"] == (2, {}, 8)
    assert seen["headers"] == (0, {"tenant": "a", "shard": 3}, 4)
    assert seen["types"] == (ORDER, Decimal("1.50"), ETA)


def test_wrong_calls_are_one_line(broker: RedisServer, store: str) -> None:
    for arguments, expected in (
        (["amqp://guest:secret@localhost//", "--app", APP], "drain reads Redis only"),
        (["redis://:secret@127.0.0.1:1/0", "--app", APP], "cannot reach Celery's broker at redis://"),
        ([broker.url, "--app", "tests.contrib.celery_apps.nowhere:app"], "there is no module"),
    ):
        ended = run_holdfast("celery", "drain", *arguments, url=store)
        assert ended.returncode != 0
        assert expected in ended.stderr
        assert len(ended.stderr.splitlines()) == 1
        assert "secret" not in ended.stderr
