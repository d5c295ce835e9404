"""Each public call with signing and encryption on: it works as without, or says what it needs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.core.payload import is_encrypted
from holdfast.core.task import State
from tests.server.security.apps.encrypted import ENCRYPTION, SIGNING, make_app
from tests.server.security.gate import open_gate
from tests.servers.urls import STORES, fresh_store
from tests.support import KEYS, eventually, run_holdfast, run_worker

CANARY = "canary-77aa"
APP = "tests.server.security.apps.encrypted:app"
ROTATED = {"s2": b"2" * 32, **SIGNING}, {"e2": b"2" * 32, **ENCRYPTION}


@pytest.fixture(params=["sqlite", *(pytest.param(each, marks=pytest.mark.long) for each in STORES if each != "sqlite")])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh_store(request.param, tmp_path)


@pytest.fixture
def app(url: str) -> Iterator[Holdfast]:
    with make_app(url, SIGNING, ENCRYPTION) as app:
        yield app


def said(url: str, *arguments: str, keys: str = "", code: int = 0) -> str:
    ended = run_holdfast(*arguments, url=url, env={"HOLDFAST_KEYS": keys})
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert CANARY not in ended.stderr
    return ended.stdout


def test_calls_of_producers(app: Holdfast, url: str, tmp_path: Path) -> None:
    greet, path = app.task_types["greet"], tmp_path / "file"
    with run_worker(APP, url):
        assert greet.using(headers={"traceparent": "00-1-1-00"}).enqueue("ann", CANARY).result(20) == f"ann:{CANARY}"
        assert asyncio.run(_aresult(url)) == f"bob:{CANARY}"
        many = app.enqueue_many(greet.using(request_id=f"r-{n}").prepare(str(n), CANARY) for n in range(5))
        assert [handle.result(20) for handle in many] == [f"{n}:{CANARY}" for n in range(5)]
        assert greet.using(request_id="r-1").enqueue("1", CANARY) == many[1]
        later = greet.using(delay="1h", priority=3).enqueue("cat", CANARY)
        later.prioritize(5)
        assert later.cancel()
        broken = app.task_types["repaired"].enqueue(str(path), CANARY)
        task = broken.wait(20)
        assert (task.state, len(broken.history())) == (State.DEAD_LETTERED, 2)
        assert "looking for the file" in str(broken.log())
        assert "FileNotFoundError" in broken.why()
        path.touch()
        said(url, "dead", "replay", broken.task_id)
        assert (broken.result(20), broken.progress().note) == (f"found:{CANARY}", None)
    assert is_encrypted(broken.status().record.payload)
    assert is_encrypted(broken.status().record.result)


async def _aresult(url: str) -> Any:
    async with make_app(url, SIGNING, ENCRYPTION) as app:
        return await (await app.task_types["greet"].aenqueue("bob", CANARY)).aresult(20)


def test_commands(app: Holdfast, url: str, tmp_path: Path) -> None:
    call = ("enqueue", "greet", "--args", json.dumps({"name": "ann", "password": CANARY}), "--force")
    with run_worker(APP, url):
        assert said(url, *call, "--wait", "--app", APP).strip() == f'"ann:{CANARY}"'
        assert json.loads(said(url, *call, "--wait", "--json", "--app", APP))["result"] == f"ann:{CANARY}"
        assert said(url, *call, "--wait", keys=KEYS).strip() == f'"ann:{CANARY}"'
        unsigned = ("enqueue", "greet", "--args", '{"name": "eve", "password": "x"}', "--force", "--wait", "--json")
        assert json.loads(said(url, *unsigned, code=1))["state"] == "dead_lettered"
        broken = said(
            url, "enqueue", "repaired", "--args", json.dumps([str(tmp_path / "no"), CANARY]), "--app", APP
        ).strip()
        assert app.handle(broken).wait(20).state is State.DEAD_LETTERED
        for command in (["tasks", "ls"], ["tasks", "show", broken], ["dead", "ls"], ["dead", "show", broken]):
            for form in ([], ["--json"]):
                assert CANARY not in said(url, *command, *form)
        assert json.loads(said(url, "tasks", "show", broken, "--json"))["arguments"].keys() == {"encrypted"}
        said(url, "schedules", "put", "often", "--type", "greet", *call[2:4], "--every", "1s", "--force", keys=KEYS)
        eventually(lambda: app.schedules.get("often").last_task_id, 20)
        last = app.schedules.get("often").last_task_id
        assert app.handle(last or "", str).result(20) == f"ann:{CANARY}"
        said(url, "schedules", "edit", "often", "--every", "1h", keys=KEYS)
        assert app.handle(said(url, "schedules", "run", "often", keys=KEYS).strip()).result(20) == f"ann:{CANARY}"


def test_a_memo_of_an_app_with_keys_is_not_taken_for_a_result_without_them(app: Holdfast, url: str) -> None:
    with run_worker(APP, url):
        assert app.task_types["charge"].enqueue(CANARY).result(20) == f"charged {CANARY}"
    with make_app(url) as plain, run_worker("tests.server.security.apps.encrypted:plain", url):
        task = plain.task_types["charge"].enqueue("4242").wait(20)
        assert "UnknownKey" in str(task.history[-1].error)
        assert "set HOLDFAST_KEYS" in str(task.history[-1].error)


def test_the_server_passes_on_what_it_cannot_read(tmp_path: Path) -> None:
    with open_gate(tmp_path) as gate:
        reader = gate.client("read")
        url = f"http://{gate.token('admin')}@127.0.0.1:{gate.port}"
        with make_app(url, SIGNING, ENCRYPTION) as app, run_worker(APP, url):
            handle = app.task_types["greet"].enqueue("ann", CANARY)
            assert handle.result(20) == f"ann:{CANARY}"
            assert app.task_types["nothing"].enqueue().result(20) is None
            eventually(lambda: app.schedules.get("firing").last_task_id, 20)
            fired = app.handle(app.schedules.get("firing").last_task_id or "", str)
            assert fired.result(20).startswith("occurrence:")
            shown = reader.get(f"/v1/tasks/{handle.task_id}")
            assert shown["arguments"].keys() == shown["result"].keys() == {"encrypted"}
            assert CANARY not in str(reader.get("/v1/schedules")) + str(shown)


def test_a_repeat_in_a_transaction_is_known_also_with_other_keys(tmp_path: Path) -> None:
    url = fresh_store("postgres", tmp_path)
    with make_app(url, SIGNING, ENCRYPTION) as app, make_app(url, *ROTATED) as rotated, psycopg.connect(url) as conn:
        first = app.task_types["greet"].using(request_id="order-1", transaction=conn).enqueue("ann", CANARY)
        assert app.task_types["greet"].using(request_id="order-1", transaction=conn).enqueue("ann", CANARY) == first
        conn.commit()
        assert rotated.task_types["greet"].using(request_id="order-1", transaction=conn).enqueue("ann", CANARY) == first
