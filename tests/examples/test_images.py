"""The image service as its compose file starts it, without Docker: one service, Redis, three workers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from holdfast.core.task import Task
from holdfast.stores.contract import Query
from holdfast.stores.open import open_store
from tests.examples.files import IMAGES, compose
from tests.servers.redis_server import RedisServer
from tests.support import WorkerProcess, environment, eventually, free_port, run_holdfast, run_worker

#: `HOLDFAST_TEST_IMAGES=200 pytest tests/examples/test_images.py` is the long form.
IMAGES_SENT = int(os.environ.get("HOLDFAST_TEST_IMAGES", "60"))
MAX_RETRIES = 1
SETTINGS = {
    "VISIBILITY_TIMEOUT": "2",
    "HEARTBEAT_INTERVAL": "0.6",
    "REAPER_INTERVAL": "1",
    "MAX_RETRIES": str(MAX_RETRIES),
    "RETRY_DELAY": "0.2",
    "FAILURE_RATE": "0.3",
    "WORK_SECONDS": "0.5",
}


class Answer(NamedTuple):
    status: int
    json: Any


class Service:
    """The running service, and how it is called."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def call(self, method: str, path: str) -> Answer:
        request = urllib.request.Request(self._url + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return Answer(response.status, json.load(response))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, json.load(error))

    def send(self, image_url: str) -> str:
        answer = self.call("POST", f"/process-image?image_url={quote(image_url, safe='')}")
        assert answer.status == 202, answer
        task_id: str = answer.json["task_id"]
        return task_id

    def status(self, task_id: str) -> Any:
        return self.call("GET", f"/status/{task_id}").json

    def counted(self, task_ids: list[str]) -> Counter[str]:
        return Counter(self.status(task_id)["status"] for task_id in task_ids)

    def answers(self, path: str = "/healthz") -> bool:
        try:
            return self.call("GET", path).status == 200
        except urllib.error.URLError:
            return False


@contextmanager
def running_redis() -> Iterator[RedisServer]:
    words = compose()["services"]["redis"]["command"]
    settings = {name.lstrip("-"): value for name, value in zip(words[1::2], words[2::2], strict=True)}
    with RedisServer(profile=settings) as server:
        yield server


@contextmanager
def running_service(env: Mapping[str, str], log: Path) -> Iterator[Service]:
    port = free_port()
    changed = {"0.0.0.0": "127.0.0.1", "8000": str(port)}
    program, *words = [changed.get(word, word) for word in compose()["services"]["api"]["command"]]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name(program)), *words],
            cwd=IMAGES,
            env=environment(more=env),
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    service = Service(port)
    try:
        eventually(service.answers, 30, "the service answers")
        yield service
        process.terminate()
        assert process.wait(20) in {0, -15}
    except BaseException as error:
        error.add_note(f"output of the service:\n{log.read_text(errors='replace')}")
        raise
    finally:
        process.kill()
        process.wait()


@contextmanager
def running_worker(url: str, env: Mapping[str, str]) -> Iterator[WorkerProcess]:
    app, *options = compose()["services"]["worker"]["command"][2:]
    options[options.index("--health") + 1] = f"127.0.0.1:{free_port()}"
    # It knows its store by REDIS_HOST and REDIS_PORT alone.
    alone = {**env, "HOLDFAST_URL": ""}
    with run_worker(app, url, *options, "--concurrency", "4", cwd=IMAGES, env=alone) as worker:
        yield worker


def all_tasks(url: str) -> list[Task]:
    async def find() -> list[Task]:
        store = open_store(url)
        try:
            page = await store.find(Query(limit=1000))
            return [task for task in await store.get([task.task_id for task in page.tasks]) if task is not None]
        finally:
            await store.close()

    return asyncio.run(find())


def replay_until_completed(service: Service, url: str, task_ids: list[str]) -> None:
    """Every replay gives fresh attempts, which fail at random too."""

    def none_failed() -> bool:
        counted = service.counted(task_ids)
        if counted["failed"] and not counted["pending"]:
            replayed = run_holdfast("dead", "replay", "--all", "--yes", url=url)
            assert replayed.returncode == 0, replayed.stderr
        return counted["completed"] == len(task_ids)

    eventually(none_failed, 120, "all dead letters are replayed to completion")


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


def test_all_images_end_though_a_third_fails_and_a_worker_is_killed(redis: RedisServer, tmp_path: Path) -> None:
    url = f"{redis.url}/0"
    env = SETTINGS | {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(redis.port)}
    with ExitStack() as stack:
        service = stack.enter_context(running_service(env, tmp_path / "service.txt"))
        assert service.answers("/readyz")
        workers = [stack.enter_context(running_worker(url, env)) for _ in range(3)]
        task_ids = [service.send(f"https://example.com/{number}.png") for number in range(IMAGES_SENT)]

        victim = workers[0].pid
        eventually(lambda: any(_is_held_by(task, victim) for task in all_tasks(url)), 30, "a worker is busy")
        workers[0].kill_all()

        eventually(lambda: not service.counted(task_ids)["pending"], 120, "all images have ended")
        for task_id in task_ids:
            check_ended(service.status(task_id))
        tasks = all_tasks(url)
        outcomes = Counter(run.outcome for task in tasks for run in task.history)
        assert len(tasks) == IMAGES_SENT
        assert outcomes["lease_expired"] > 0, "the killed worker held nothing"
        assert any(task.attempt > 1 for task in tasks), "nothing was retried"
        replay_until_completed(service, url, task_ids)


def check_ended(status: Any) -> None:
    if status["status"] == "completed":
        assert status["result_url"].startswith("http://localhost:8000/results/")
        assert 0 <= status["retry_count"] <= MAX_RETRIES
    else:
        assert status["status"] == "failed"
        assert status["error_msg"]
        assert status["retry_count"] == MAX_RETRIES


def _is_held_by(task: Task, pid: int) -> bool:
    return task.state == "claimed" and f":{pid}-" in (task.worker_id or "")


def test_bad_calls_are_answered_and_an_absent_store_is_a_503(tmp_path: Path) -> None:
    with running_redis() as redis:
        env = SETTINGS | {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(redis.port)}
        with running_service(env, tmp_path / "service.txt") as service:
            assert service.call("POST", "/process-image").status == 422
            assert service.call("POST", "/process-image?image_url=file:///etc/passwd").status == 422
            assert service.call("GET", "/status/nonsense").status == 404
            assert service.call("GET", f"/status/{'0' * 32}").status == 404
            redis.kill()
            eventually(lambda: service.call("GET", "/readyz").status == 503, 30, "not ready without Redis")
            assert service.call("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("REAPER_INTERVAL", "0.1", "REAPER_INTERVAL: 0.1 must be at least 1"),
        ("MAX_RETRIES", "many", "MAX_RETRIES: 'many' is not a number"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(name: str, value: str, says: str) -> None:
    assert _settings({name: value}).stderr.strip() == says


@pytest.mark.parametrize(
    ("visibility_timeout", "heartbeat_interval", "lease"),
    [("30", "10", 30), ("30", "5", 15), ("30", "20", 30), ("60", "", 60), ("1", "0.5", 1)],
)
def test_heartbeats_come_at_least_as_often_as_asked(
    visibility_timeout: str, heartbeat_interval: str, lease: float
) -> None:
    asked = {"VISIBILITY_TIMEOUT": visibility_timeout, "HEARTBEAT_INTERVAL": heartbeat_interval}
    assert float(_settings(asked).stdout) == lease


def _settings(env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from settings import read_settings; print(read_settings().lease_s)"],
        cwd=IMAGES,
        env=environment(more=env),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
