"""Signed and encrypted tasks on their way through a store and a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Holdfast, RequestConflict, TaskHandle
from holdfast.core.sealing import is_sealed
from holdfast.core.task import NewTask, State, Task
from holdfast.errors import UnknownKey
from holdfast.stores.contract import Query, Store
from holdfast.stores.open import open_store
from tests.api.security.apps.sealed import ENCRYPTION, SIGNING, make_app
from tests.support import eventually, run_worker

CANARY = "canary-5c1d"
APP = "tests.api.security.apps.sealed:app"


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
    return handle.wait(timeout=20)


def _add(url: str, *tasks: NewTask) -> None:
    async def add(store: Store) -> None:
        await store.enqueue(tasks)
        await store.close()

    asyncio.run(add(open_store(url)))


def _as_new(app: Holdfast, task: Task, **changes: Any) -> NewTask:
    """The envelope of a task as somebody who can write to the store may copy it."""
    fields = {name: getattr(task, name) for name in ("task_id", "type", "queue", "payload", "headers")}
    return NewTask(**{**fields, **changes})


def test_sealed_tasks_run_and_nothing_of_them_is_in_the_store(app: Holdfast, url: str, tmp_path: Path) -> None:
    handles = [_enqueue(app, "greet", "ann", CANARY), _enqueue(app, "greet_in_thread", "bob", CANARY)]
    charge = _enqueue(app, "charge", CANARY)
    with run_worker(APP, url) as worker:
        assert [handle.result(timeout=20) for handle in handles] == [f"ann:{CANARY}", f"bob:{CANARY}"]
        assert charge.result(timeout=20) == f"charged {CANARY}"
        ticks = eventually(lambda: _ticks(app), 20, "a tick of the schedule has run")
        assert all(is_sealed(task.payload) for task in ticks)
        assert worker.stop() == 0
        assert CANARY not in worker.output()
    for handle in (*handles, charge):
        task = handle.status()
        assert is_sealed(task.payload)
        assert is_sealed(task.result)
    app.close()
    everything = b"".join(path.read_bytes() for path in tmp_path.glob("tasks.db*") if path.is_file())
    assert len(everything) > 10_000
    assert CANARY.encode() not in everything


def _ticks(app: Holdfast) -> list[Task]:
    found = app._link.run(app.store.find(Query(states=frozenset({State.SUCCEEDED}), type="greet")))
    return [task for task in found.tasks if "schedule" in task.headers]


def test_what_others_put_into_the_store_is_not_run(app: Holdfast, url: str) -> None:
    genuine = _enqueue(app, "greet", "ann", CANARY).status()
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


def test_declared_schedules_are_the_same_whoever_declares_them(app: Holdfast, url: str) -> None:
    """Otherwise each worker that starts would put its own in the place of the last one's."""
    with make_app(url, SIGNING, ENCRYPTION) as other:
        assert app.declared_schedules == other.declared_schedules
    [schedule] = app.declared_schedules
    assert is_sealed(schedule.call.payload)
    assert replace(schedule.call, payload=b"", headers={}).queue == "default"
