"""The image service as its compose file starts it, without Docker: one service, Redis, three workers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
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
#: Three heartbeats, which is less than VISIBILITY_TIMEOUT.
LEASE = "1.8s"
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

    def call(self, method: str, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        request = urllib.request.Request(self._url + path, method=method, headers=dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return Answer(response.status, json.load(response))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, json.load(error))

    def post(self, image_url: str, key: str | None = None) -> Answer:
        headers = {} if key is None else {"Idempotency-Key": key}
        return self.call("POST", f"/process-image?image_url={quote(image_url, safe='')}", headers)

    def send(self, image_url: str, key: str | None = None) -> str:
        answer = self.post(image_url, key)
        assert answer.status == 202, answer
        task_id: str = answer.json["task_id"]
        return task_id

    def status(self, task_id: str) -> Any:
        answer = self.call("GET", f"/status/{task_id}")
        assert answer.status == 200, answer
        return answer.json

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
    options[options.index("--health") + 1] = "127.0.0.1:0"
    # It knows its store by REDIS_HOST and REDIS_PORT alone.
    alone = {**env, "HOLDFAST_URL": ""}
    with run_worker(app, url, *options, "--concurrency", "4", cwd=IMAGES, env=alone) as worker:
        yield worker


def has_begun(worker: WorkerProcess) -> bool:
    assert worker.process.poll() is None, worker.output()
    return "task types: process_image" in worker.output()


def is_caught_busy(worker: WorkerProcess, url: str) -> bool:
    """Whether it stands still now with a task in its hands; if it has none, it goes on."""
    pids = [worker.pid, *worker.children()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    if any(task.state == "claimed" and f":{worker.pid}-" in (task.worker_id or "") for task in all_tasks(url)):
        return True
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    return False


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
        # Not at once on a busy machine: the first call imports, connects and loads scripts, and a probe waits 2 s.
        eventually(lambda: service.answers("/readyz"), 30, "the service is ready")
        workers = [stack.enter_context(running_worker(url, env)) for _ in range(3)]
        # Else those that begin first are done before the last one has begun.
        eventually(lambda: all(map(has_begun, workers)), 60, "all workers have begun")
        assert f"lease {LEASE}," in workers[0].output()
        task_ids = [service.send(f"https://example.com/{number}.png") for number in range(IMAGES_SENT)]

        eventually(lambda: is_caught_busy(workers[0], url), 30, "a worker is busy")
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


def test_calls_are_answered_by_one_clear_sentence_and_an_absent_store_by_503(tmp_path: Path) -> None:
    with running_redis() as redis:
        env = SETTINGS | {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(redis.port)}
        with running_service(env, tmp_path / "service.txt") as service:
            cat, dog = "https://example.com/cat.png", "https://example.com/dog.png"
            for wrong in (
                "",
                "nonsense",
                "file:///etc/passwd",
                "https://",
                "https:///x",
                "https://a b",
                cat + "x" * 2000,
            ):
                refused = service.post(wrong)
                assert (refused.status, refused.json["detail"].partition(":")[0]) == (422, "image_url")
            for unknown in ("nonsense", "0" * 32):
                assert service.call("GET", f"/status/{unknown}").status == 404

            first = service.send(cat, "one")
            assert [service.send(cat, "one"), service.send(cat, "one")] == [first, first]
            assert first not in {service.send(cat, "two"), service.send(cat), service.send(cat)}
            assert service.post(dog, "one").status == 409
            assert service.post(cat, "with a space").status == 422

            redis.kill()
            with ThreadPoolExecutor() as pool:
                away = [
                    pool.submit(service.call, "GET", "/readyz"),
                    pool.submit(service.call, "GET", f"/status/{first}"),
                    pool.submit(service.post, cat, "one"),
                ]
            for answer in (each.result() for each in away):
                assert answer.status == 503
                assert answer.json["detail"].startswith("the store does not answer")
                assert str(redis.port) not in str(answer.json), "where the store is concerns nobody outside"
            assert service.call("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("REDIS_HOST", "a b", "REDIS_HOST: 'a b' must be a name or an address, without a port"),
        ("REDIS_PORT", "tcp://10.0.0.1:6379", "REDIS_PORT: 'tcp://10.0.0.1:6379' must be a number from 1 to 65535"),
        ("REDIS_PORT", "70000", "REDIS_PORT: '70000' must be a number from 1 to 65535"),
        ("VISIBILITY_TIMEOUT", "nan", "VISIBILITY_TIMEOUT: 'nan' must be a number from 1 to 86400"),
        ("HEARTBEAT_INTERVAL", "0", "HEARTBEAT_INTERVAL: '0' must be a number from 0.5 to 86400"),
        ("REAPER_INTERVAL", "0.1", "REAPER_INTERVAL: '0.1' must be a number from 1 to 86400"),
        ("MAX_RETRIES", "many", "MAX_RETRIES: 'many' must be a number from 0 to 999"),
        ("MAX_RETRIES", "2.5", "MAX_RETRIES: 2.5 must be a whole number"),
        ("FAILURE_RATE", "30", "FAILURE_RATE: '30' must be a number from 0 to 1"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=f"^{re.escape(says)}$"):
        _settings({name: value}, monkeypatch)


def test_the_service_and_the_worker_end_with_that_line() -> None:
    # Neither comes as far as listening; but a port for --health would be there before the app is.
    programs = [compose()["services"]["api"]["command"], ["holdfast", "worker", "tasks:app"]]
    started = [
        subprocess.Popen(
            [str(Path(sys.executable).with_name(program)), *words],
            cwd=IMAGES,
            env=environment(more={"MAX_RETRIES": "many"}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for program, *words in programs
    ]
    for process in started:
        output, _ = process.communicate(timeout=60)
        assert process.returncode in {1, 2}
        assert len(output.splitlines()) == 1, output
        assert "MAX_RETRIES: 'many' must be a number from 0 to 999" in output


@pytest.mark.parametrize(
    ("visibility_timeout", "heartbeat_interval", "lease"),
    [("30", "10", 30), ("30", "5", 15), ("30", "20", 30), ("60", "", 60), ("1", "0.5", 1)],
)
def test_heartbeats_come_at_least_as_often_as_asked(
    visibility_timeout: str, heartbeat_interval: str, lease: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"VISIBILITY_TIMEOUT": visibility_timeout, "HEARTBEAT_INTERVAL": heartbeat_interval}
    assert _settings(asked, monkeypatch).lease_s == lease


@pytest.mark.parametrize(
    ("asked", "url"),
    [
        ({}, "redis://localhost:6379/0"),
        ({"REDIS_HOST": "cache.example", "REDIS_PORT": "7000"}, "redis://cache.example:7000/0"),
        ({"REDIS_HOST": "::1"}, "redis://[::1]:6379/0"),
        # As Kubernetes sets it in every pod when there is a service of the name redis.
        ({"HOLDFAST_URL": "http://server:8080", "REDIS_PORT": "tcp://10.0.0.1:6379"}, "http://server:8080"),
    ],
)
def test_the_store_is_the_one_that_is_named(
    asked: Mapping[str, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _settings(asked, monkeypatch).url == url


def test_retries_are_attempts_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _settings({"MAX_RETRIES": "0"}, monkeypatch).max_attempts == 1
    assert _settings({}, monkeypatch).max_attempts == 4


def _settings(env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the service would read from this environment, and nothing else."""
    for name in [*SETTINGS, "REDIS_HOST", "REDIS_PORT", "HOLDFAST_URL"]:
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return runpy.run_path(str(IMAGES / "settings.py"))["read_settings"]()
