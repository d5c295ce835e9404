"""Signed and encrypted tasks on their way through a store and a worker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast import Holdfast, Keys, RequestConflict, TaskHandle
from holdfast.clock import SystemClock
from holdfast.core.ids import occurrence_id
from holdfast.core.payload import is_encrypted
from holdfast.core.schedule.occurrences import shown_time
from holdfast.core.task import NewTask, State, Task
from holdfast.errors import BadSchedule, Refused, UnknownKey, UsageError
from holdfast.security.crypto import PayloadCrypto
from holdfast.stores.contract import Query, Store
from holdfast.stores.open import open_store
from tests.server.security.apps.encrypted import ENCRYPTION, SIGNING, make_app
from tests.server.security.gate import open_gate
from tests.servers.urls import STORES, fresh_store
from tests.support import eventually, run_holdfast, run_worker

CANARY = "canary-5c1d"
APP = "tests.server.security.apps.encrypted:app"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


@pytest.fixture
def app(url: str) -> Iterator[Holdfast]:
    with make_app(url, SIGNING, ENCRYPTION) as app:
        yield app


def _enqueue(app: Holdfast, name: str, *args: Any, **options: Any) -> TaskHandle[Any]:
    return app.task_types[name].using(**options).enqueue(*args)


def _ended(handle: TaskHandle[Any]) -> Task:
    return handle.wait(timeout=20).record


def _add(url: str, *tasks: NewTask) -> None:
    async def add(store: Store) -> None:
        await store.enqueue(tasks)
        await store.close()

    asyncio.run(add(open_store(url)))


def _as_new(app: Holdfast, task: Task, **changes: Any) -> NewTask:
    """The envelope of a task as somebody who can write to the store may copy it."""
    fields = {name: getattr(task, name) for name in ("task_id", "type", "queue", "payload", "headers")}
    return NewTask(**{**fields, **changes})


def test_encrypted_tasks_run_and_nothing_of_them_is_in_the_store(app: Holdfast, url: str, tmp_path: Path) -> None:
    handles = [_enqueue(app, "greet", "ann", CANARY), _enqueue(app, "greet_in_thread", "bob", CANARY)]
    charge = _enqueue(app, "charge", CANARY)
    with run_worker(APP, url) as worker:
        assert [handle.result(timeout=20) for handle in handles] == [f"ann:{CANARY}", f"bob:{CANARY}"]
        assert charge.result(timeout=20) == f"charged {CANARY}"
        occurrences = eventually(lambda: _occurrences(app), 20, "a occurrence of the schedule has run")
        assert all(is_encrypted(task.payload) for task in occurrences)
        assert worker.stop() == 0
        assert CANARY not in worker.output()
    for handle in (*handles, charge):
        task = handle.status()
        assert is_encrypted(task.record.payload)
        assert is_encrypted(task.record.result)
        assert CANARY in str(task.args)
        assert CANARY in str(task.to_dict()["result"])
    app.close()
    everything = b"".join(path.read_bytes() for path in tmp_path.glob("tasks.db*") if path.is_file())
    assert len(everything) > 10_000
    assert CANARY.encode() not in everything


@pytest.mark.parametrize("store", STORES)
def test_a_task_that_returns_none_has_an_encrypted_result_too(store: str, tmp_path: Path) -> None:
    url = fresh_store(store, tmp_path)
    names = ["nothing", "nothing_in_thread", *(["nothing_in_block"] if store == "postgres" else [])]
    with make_app(url, SIGNING, ENCRYPTION) as app, run_worker(APP, url):
        handles = [_enqueue(app, name) for name in names]
        assert [handle.result(timeout=20) for handle in handles] == [None] * len(names)
        assert all(is_encrypted(handle.status().record.result) for handle in handles)


def _occurrences(app: Holdfast) -> list[Task]:
    found = app._link.run(app.store.find(Query(states=frozenset({State.SUCCEEDED}), type="greet")))
    return [task for task in found.tasks if "occurrence" in task.headers]


def test_what_others_put_into_the_store_is_not_run(app: Holdfast, url: str) -> None:
    genuine = _enqueue(app, "greet", "ann", CANARY).status().record
    with make_app(url) as plain, make_app(url, {"s1": b"x" * 32}, ENCRYPTION) as foreign:
        unsigned = _enqueue(plain, "greet", "eve", "x")
        forged = _enqueue(foreign, "greet", "eve", "x")
    new_id = app._ids.task_id
    copies = {
        "played again": _as_new(app, genuine, task_id=new_id()),
        "moved": _as_new(app, genuine, task_id=new_id(), queue="other"),
        "another type": _as_new(app, genuine, task_id=new_id(), type="greet_in_thread"),
        "another payload": _as_new(app, genuine, task_id=new_id(), payload=b'{"name":"eve","password":"x"}'),
    }
    _add(url, *copies.values())
    with run_worker(APP, url, "--queues", "default,other"):
        assert app.handle(genuine.task_id, str).result(timeout=20) == f"ann:{CANARY}"
        for what, task_id in {
            "unsigned": unsigned.task_id,
            "forged": forged.task_id,
            **{what: task.task_id for what, task in copies.items()},
        }.items():
            task = _ended(app.handle(task_id))
            error = task.history[-1].error
            assert (what, task.state, task.attempt) == (what, State.DEAD_LETTERED, 1)
            assert error is not None
            assert error.type == "holdfast.errors.NotGenuine"


@pytest.mark.parametrize("encrypts_only", [False, True])
def test_the_task_of_a_schedule_runs_once_however_often_it_is_copied(url: str, encrypts_only: bool) -> None:
    keys = None if encrypts_only else SIGNING
    reference = "tests.server.security.apps.encrypted:encrypting" if encrypts_only else APP
    with make_app(url, keys, ENCRYPTION) as app, run_worker(reference, url) as worker:
        genuine = eventually(lambda: _occurrences(app), 20, "a occurrence of the schedule has run")[0]
        app.schedules.pause("firing")
        occurrence_ms = int(genuine.task_id[:12], 16)
        second_ms, year_ms = 1_000, 365 * 86_400_000
        copies = {
            "played again": _as_new(app, genuine),
            "under another id": _as_new(app, genuine, task_id=app._ids.task_id()),
            "on demand": _as_new(app, genuine, task_id=app._ids.task_id(), headers=_without_occurrence(genuine)),
            "of no occurrence": _as_of(app, genuine, occurrence_ms + 1),
            "of one to come": _as_of(app, genuine, occurrence_ms + 3_600 * second_ms),
            "of one long past": _as_of(app, genuine, occurrence_ms - year_ms),
        }
        before = len(_occurrences(app))
        _add(url, *copies.values())
        for what, copy in copies.items():
            task = _ended(app.handle(copy.task_id))
            wanted = State.SUCCEEDED if what == "played again" else State.DEAD_LETTERED
            assert (what, task.state, task.deliveries) == (what, wanted, 1), task.history
        assert len(_occurrences(app)) == before
        assert worker.stop() == 0


def _without_occurrence(task: Task) -> dict[str, str]:
    return {name: value for name, value in task.headers.items() if name != "occurrence"}


def _as_of(app: Holdfast, task: Task, occurrence_ms: int) -> NewTask:
    """The task of a schedule as that of another occurrence, made up by somebody without the key."""
    headers = {**task.headers, "occurrence": shown_time(occurrence_ms)}
    return _as_new(app, task, task_id=occurrence_id("firing", occurrence_ms, 0), headers=headers)


@pytest.mark.parametrize("store", STORES)
def test_a_task_is_not_played_again_when_the_store_has_forgotten_it(store: str, tmp_path: Path) -> None:
    """Its signature is older than the enqueue by more than clocks may differ."""
    url = fresh_store(store, tmp_path)
    with make_app(url, SIGNING, ENCRYPTION) as app, run_worker(APP, url):
        task_type = app.task_types["greet"]
        prepared, task_id = task_type.prepare("ann", CANARY), app._ids.task_id()
        assert prepared.options.crypto is not None
        two_hours_ago = PayloadCrypto(
            Keys(SIGNING), Keys(ENCRYPTION), 10_000, os.urandom, lambda: SystemClock().now_ms() - 7_200_000
        )
        _add(
            url,
            msgspec.structs.replace(prepared.options, crypto=two_hours_ago).new_task(
                task_id, prepared.type, prepared.payload
            ),
        )
        task = _ended(app.handle(task_id))
        assert task.state is State.DEAD_LETTERED
        assert "a copy of an old task" in str(task.history[-1].error)


def test_ids_of_schedules_are_not_taken_over_http(tmp_path: Path) -> None:
    """Neither to repeat an occurrence nor to be there before it."""
    with open_gate(tmp_path) as gate:
        client = gate.client("enqueue:default")
        for body in (
            {"type": "greet", "task_id": occurrence_id("firing", 1_800_000_000_000, 0)},
            {"type": "greet", "request_id": "schedule:firing@2027-01-15T08:00:00Z"},
        ):
            assert "schedule" in client.post("/v1/queues/default/tasks", body, status=422)["detail"]
        url = f"http://{gate.token('enqueue:default')}@127.0.0.1:{gate.port}"
        task = NewTask(
            task_id=occurrence_id("firing", 1_800_000_000_000, 0), type="greet", queue="default", payload=b"{}"
        )
        with pytest.raises(UsageError, match="only a schedule"):
            _add(url, task)


# -- schedules by those who have the keys, and by those who have not ---------------------------------------------


def test_a_signed_schedule_is_changed_and_run_with_the_keys_only(app: Holdfast, url: str) -> None:
    greet = app.task_types["greet"]
    app.schedules.put("hourly", greet.prepare("ann", CANARY), every="1h")
    with make_app(url) as plain:
        with pytest.raises(BadSchedule, match="app that has the keys"):
            plain.schedules.edit("hourly", every="1s")
        with pytest.raises(Refused, match="run it by the app that has the keys"):
            plain.schedules.run_now("hourly")
        assert plain.schedules.edit("hourly", priority=5, jitter="10ms").call.priority == 5
        plain.schedules.pause("hourly")
    with make_app(url, {"s2": b"2" * 32}, {"e2": b"2" * 32}) as foreign, pytest.raises(UnknownKey):
        foreign.schedules.edit("hourly", every="1s")
    app.schedules.resume("hourly")
    assert app.schedules.edit("hourly", every="1s", queue="other").timing.every_ms == 1_000
    on_demand = app.schedules.run_now("hourly")
    with run_worker(APP, url, "--queues", "other"):
        assert on_demand.result(timeout=20) == f"ann:{CANARY}"
        eventually(lambda: [task for task in _occurrences(app) if task.headers["schedule"] == "hourly"], 20)


def test_the_command_line_changes_and_runs_signed_schedules_with_the_app_only(app: Holdfast, url: str) -> None:
    def said(*arguments: str, code: int = 0) -> str:
        ended = run_holdfast("schedules", *arguments, url=url)
        assert ended.returncode == code, ended.stderr
        return ended.stdout + ended.stderr

    said("put", "hourly", "--type", "greet", "--args", f'["ann", "{CANARY}"]', "--every", "1h", "--app", APP)
    assert CANARY not in said("show", "hourly") + said("ls", "--json")
    assert "app that has the keys" in said("edit", "hourly", "--every", "1s", code=2)
    assert "--app MODULE:APP" in said("run", "hourly", code=1)
    said("edit", "hourly", "--every", "1s", "--app", APP)
    task_id = said("run", "hourly", "--app", APP).strip()
    with run_worker(APP, url):
        assert app.handle(task_id, str).result(timeout=20) == f"ann:{CANARY}"
        eventually(lambda: [task for task in _occurrences(app) if task.headers["schedule"] == "hourly"], 20)


def test_a_worker_without_the_key_says_so_and_tries_again(app: Holdfast, url: str) -> None:
    with make_app(url, SIGNING, {"e2": b"2" * 32, **ENCRYPTION}) as newer:
        handle = _enqueue(newer, "greet", "ann", CANARY)
    with run_worker(APP, url):
        task = _ended(handle)
    errors = [attempt.error for attempt in task.history]
    assert [error and error.type for error in errors] == ["holdfast.errors.UnknownKey"] * 2
    assert "needs the key 'e2'; this process has e1" in (errors[0].message if errors[0] else "")


def test_a_reader_without_the_key_says_so(app: Holdfast, url: str) -> None:
    handle = _enqueue(app, "greet", "ann", CANARY)
    with run_worker(APP, url):
        assert handle.result(timeout=20) == f"ann:{CANARY}"
    with make_app(url) as plain, pytest.raises(UnknownKey, match="set HOLDFAST_KEYS"):
        plain.handle(handle.task_id, str).result(timeout=5)


def test_a_repeat_is_known_by_its_request_id_also_with_other_keys(app: Holdfast, url: str) -> None:
    first = _enqueue(app, "greet", "ann", CANARY, request_id="order-1")
    assert _enqueue(app, "greet", "ann", CANARY, request_id="order-1") == first
    with make_app(url, {"s2": b"2" * 32, **SIGNING}, {"e2": b"2" * 32, **ENCRYPTION}) as rotated:
        assert _enqueue(rotated, "greet", "ann", CANARY, request_id="order-1") == first
        [many] = rotated.enqueue_many([rotated.task_types["greet"].using(request_id="order-1").prepare("ann", CANARY)])
        assert many == first
        with pytest.raises(RequestConflict):
            _enqueue(rotated, "greet", "eve", CANARY, request_id="order-1")
    with pytest.raises(RequestConflict):
        _enqueue(app, "greet_in_thread", "ann", CANARY, request_id="order-1")


def test_a_task_id_that_is_known_in_another_queue_is_a_conflict(app: Holdfast) -> None:
    first, moved = (app.task_types["greet"].using(queue=queue).prepare("ann", CANARY) for queue in ("default", "other"))
    moved.id = first.task_id
    app.enqueue_many([first])
    with pytest.raises(RequestConflict):
        app.enqueue_many([moved])


def test_declared_schedules_are_the_same_whoever_declares_them(app: Holdfast, url: str) -> None:
    """Otherwise each worker that starts would put its own in the place of the last one's."""
    with make_app(url, SIGNING, ENCRYPTION) as other:
        assert app.declared_schedules == other.declared_schedules
    [schedule] = app.declared_schedules
    assert is_encrypted(schedule.call.payload)
    assert replace(schedule.call, payload=b"", headers={}).queue == "default"
