"""The example projects, run as their README says: a real server, a real worker, requests over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contrib.services import Service, running
from tests.support import ROOT, environment, eventually, free_port, holdfast_command, run_holdfast, run_worker

DJANGO = ROOT / "examples" / "django"
FASTAPI = ROOT / "examples" / "fastapi"


def test_the_shop_in_django_confirms_orders(tmp_path: Path) -> None:
    if pytest.importorskip("django").VERSION < (6,):
        pytest.importorskip("django_tasks")
    more = {"SHOP_DATABASE": str(tmp_path / "shop.db"), "PYTHONDONTWRITEBYTECODE": "1"}
    env = environment(f"sqlite:///{tmp_path}/tasks.db", more)
    manage = [sys.executable, str(DJANGO / "manage.py")]  # from another folder than its own
    subprocess.run([*manage, "migrate", "-v0"], env=env, cwd=tmp_path, check=True)
    port = free_port()
    shop = Service(port)
    server = [*manage, "runserver", f"127.0.0.1:{port}", "--noreload"]
    with (
        running(server, env, tmp_path, tmp_path / "server.txt") as process,
        running([*manage, "holdfast_worker"], env, tmp_path, tmp_path / "worker.txt"),
    ):
        shop.wait(process)
        status, placed = shop.call(
            "POST", "/orders/", "article=tea", {"Content-Type": "application/x-www-form-urlencoded"}
        )
        assert status == 202
        path = f"/orders/{placed['number']}/"
        eventually(lambda: shop.call("GET", path)[1]["task"] == "SUCCESSFUL", 30, "the task has succeeded")
        assert shop.call("GET", path) == (200, {"article": "tea", "confirmed": True, "task": "SUCCESSFUL"})


def test_the_images_in_fastapi_are_resized_and_the_api_asks_for_tokens(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    url = f"sqlite:///{tmp_path}/tasks.db"
    port = free_port()
    images = Service(port)
    server = [sys.executable, "-m", "uvicorn", "service:service", "--port", str(port), "--app-dir", str(FASTAPI)]
    env = environment(url, {"PYTHONDONTWRITEBYTECODE": "1"})
    with (
        running(server, env, tmp_path, tmp_path / "server.txt") as process,
        run_worker("service:app", url, cwd=FASTAPI, env={"PYTHONDONTWRITEBYTECODE": "1"}),
    ):
        images.wait(process)
        status, uploaded = images.call("POST", "/images?name=cat.jpg&width=400")
        assert status == 202
        path = f"/images/{uploaded['task_id']}"
        eventually(lambda: images.call("GET", path)[1]["state"] == "succeeded", 30, "the task has succeeded")
        assert images.call("GET", path)[1]["result"] == "cat.jpg at 400"
        assert images.call("GET", "/images/nothing")[0] == 404

        mounted = f"/holdfast/v1/tasks/{uploaded['task_id']}"
        assert images.call("GET", mounted)[0] == 401
        token = run_holdfast("token", "create", "--scope", "read", url=url).stdout.strip()
        status, task = images.call("GET", mounted, headers={"Authorization": f"Bearer {token}"})
        assert (status, task["state"], task["queue"]) == (200, "succeeded", "images")


def test_a_store_behind_a_mounted_api_is_a_store_for_our_own_clients(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    url = f"sqlite:///{tmp_path}/tasks.db"
    token = run_holdfast("token", "create", "--scope", "admin", url=url).stdout.strip()
    port = free_port()
    server = [sys.executable, "-m", "uvicorn", "service:service", "--port", str(port), "--app-dir", str(FASTAPI)]
    env = environment(url, {"PYTHONDONTWRITEBYTECODE": "1"})
    with running(server, env, tmp_path, tmp_path / "server.txt") as process:
        Service(port).wait(process)
        listed = subprocess.run(
            holdfast_command("tasks", "ls", "--json"),
            env=environment(f"http://{token}@127.0.0.1:{port}/holdfast"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert listed.returncode == 0, listed.stderr


def test_a_service_that_is_stopped_lets_the_long_polls_of_its_mounted_api_go(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    url = f"sqlite:///{tmp_path}/tasks.db"
    token = run_holdfast("token", "create", "--scope", "admin", url=url).stdout.strip()
    port = free_port()
    server = [sys.executable, "-m", "uvicorn", "service:service", "--port", str(port), "--app-dir", str(FASTAPI)]
    env = environment(url, {"PYTHONDONTWRITEBYTECODE": "1"})
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = json.dumps({"worker_id": "one", "queues": ["images"], "wait": 20})
    with running(server, env, tmp_path, tmp_path / "server.txt") as process, ThreadPoolExecutor() as pool:
        service = Service(port)
        service.wait(process)
        poll = pool.submit(service.call, "POST", "/holdfast/v1/reserve", body, headers)
        eventually(lambda: b'"reserve"' in service.call("GET", "/holdfast/metrics", None, headers)[1], what="it waits")
        process.terminate()
        process.wait(10)  # half of the poll
        status, reserved = poll.result()
        assert (status, reserved["tasks"]) == (200, [])
