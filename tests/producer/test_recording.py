"""Recording tasks on a real store, and the life of an app."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Retry, TaskHandle
from holdfast.core.retry import RunPolicy
from holdfast.core.task import State
from holdfast.errors import (
    RequestConflict,
    StoreUnavailable,
)
from holdfast.producer.portal import SubmittedCall
from holdfast.stores.contract import MAX_BATCH, Placement, Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from tests.producer.setting import Setting, double
from tests.support import environment

# -- recording -----------------------------------------------------------------------------------------------


def test_what_is_recorded_is_what_was_asked_for(setting: Setting) -> None:
    options = setting.double.using(
        queue="images", priority=5, request_id="order-42", retry=Retry(max_attempts=2), headers={"trace": "1"}
    )
    task = options.enqueue(21).status()
    assert (task.type, task.queue, task.state, task.args) == ("double", "images", State.READY, {"number": 21})
    assert (task.priority, task.request_id, task.headers) == (5, "order-42", {"trace": "1"})
    assert task.policy == RunPolicy(max_attempts=2)


def test_sync_and_async_calls_meet_in_one_store(setting: Setting) -> None:
    async def main() -> tuple[str, State]:
        handle = await setting.double.aenqueue(1)
        return handle.task_id, (await handle.astatus()).state

    task_id, state = asyncio.run(main())
    assert state is State.READY
    assert setting.app.handle(task_id).status().task_id == task_id
    assert setting.app.handle(task_id) == TaskHandle(setting.app._link, task_id, bytes)


def test_a_delayed_task_is_scheduled(setting: Setting) -> None:
    delayed = setting.double.using(delay="2h").enqueue(1).status()
    assert (delayed.state, delayed.run_at - delayed.created_at) == (State.SCHEDULED, timedelta(hours=2))
    dated = setting.double.using(run_at=datetime(2100, 1, 1, tzinfo=UTC)).enqueue(1).status()
    assert (dated.state, dated.run_at) == (State.SCHEDULED, datetime(2100, 1, 1, tzinfo=UTC))
    past = setting.double.using(run_at=datetime(2000, 1, 1, tzinfo=UTC)).enqueue(1).status()
    assert past.state is State.READY


def test_many_calls_are_recorded_in_batches_and_taken_at_most_one_ahead(setting: Setting) -> None:
    taken_when_recorded = []

    def calls() -> Iterator[Any]:
        for number in range(2 * MAX_BATCH + 1):
            if number % MAX_BATCH == 0:
                taken_when_recorded.append(len(setting.store.batches))
            yield setting.double.prepare(number)

    handles = setting.app.enqueue_many(calls())
    assert [len(batch) for batch in setting.store.batches] == [MAX_BATCH, MAX_BATCH, 1]
    assert all(recorded >= taken - 1 for taken, recorded in enumerate(taken_when_recorded))
    assert [handle.task_id for handle in handles] == [id_ for batch in setting.store.batches for id_ in batch]
    assert sorted({handle.task_id for handle in handles}) == [handle.task_id for handle in handles]
    assert handles[-1].status().record.payload == b'{"number":2000}'
    assert setting.app.enqueue_many([]) == []


def test_an_interrupt_of_many_calls_is_an_interrupt(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = SubmittedCall.result

    def interrupted(self: SubmittedCall[Any], timeout: float = -1) -> Any:
        if setting.store.batches:
            raise KeyboardInterrupt
        return whole(self, timeout)

    monkeypatch.setattr(SubmittedCall, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        setting.app.enqueue_many(setting.double.prepare(number) for number in range(3 * MAX_BATCH))
    monkeypatch.undo()
    assert len(setting.store.batches) < 3


def test_an_error_in_the_callers_generator_leaves_what_was_sent_recorded(setting: Setting) -> None:
    def calls() -> Iterator[Any]:
        for number in range(MAX_BATCH):
            yield setting.double.prepare(number)
        raise LookupError("no more")

    with pytest.raises(LookupError):
        setting.app.enqueue_many(calls())
    (counts,) = asyncio.run(setting.store.counts())
    assert counts.states == {State.READY: MAX_BATCH}


def test_a_generator_runs_in_the_thread_of_its_caller(setting: Setting) -> None:
    threads = set()

    def calls() -> Iterator[Any]:
        threads.add(threading.current_thread())
        setting.double.enqueue(0)  # a sync call inside it must not wait for itself
        yield setting.double.prepare(1)

    assert len(setting.app.enqueue_many(calls())) == 1
    assert threads == {threading.current_thread()}


def test_many_calls_can_be_recorded_from_async_code(setting: Setting) -> None:
    handles = asyncio.run(setting.app.aenqueue_many(setting.double.prepare(number) for number in range(1_500)))
    assert len({handle.task_id for handle in handles}) == 1_500
    assert [len(batch) for batch in setting.store.batches] == [1_000, 500]


def test_an_error_of_the_store_is_raised_at_once_since_the_store_itself_retries(setting: Setting) -> None:
    setting.store.replies_to_lose = 2
    with pytest.raises(StoreUnavailable, match=r"^the reply is lost$"):
        setting.double.enqueue(1)
    assert len(setting.store.batches) == 1


def test_a_caller_that_repeats_an_unanswered_request_gets_the_task_of_the_first_call(setting: Setting) -> None:
    order = setting.double.using(request_id="order-42")
    setting.store.replies_to_lose = 1
    with pytest.raises(StoreUnavailable):
        order.enqueue(1)
    (first,) = setting.store.batches[0]
    assert order.enqueue(1).task_id == first
    (counts,) = asyncio.run(setting.store.counts())
    assert counts.states == {State.READY: 1}


# -- request ids ---------------------------------------------------------------------------------------------


def test_the_same_request_id_gives_the_same_task_however_concurrently_it_is_sent(setting: Setting) -> None:
    start = threading.Barrier(100)
    call = setting.double.using(request_id="order-42")

    def send(_: int) -> str:
        start.wait(30)
        return call.enqueue(1).task_id

    with ThreadPoolExecutor(100) as pool:
        assert len(set(pool.map(send, range(100)))) == 1
    (counts,) = asyncio.run(setting.store.counts())
    assert sum(counts.states.values()) == 1


def test_a_request_id_that_stands_for_another_call_is_a_conflict(setting: Setting) -> None:
    first = setting.double.using(request_id="order-42").enqueue(1)
    text = "request_id 'order-42' in queue 'default' already stands for another double call"
    with pytest.raises(RequestConflict) as caught:
        setting.double.using(request_id="order-42").enqueue(2)
    assert str(caught.value) == f"{text}: task {first.task_id}; use another request_id"
    assert setting.double.using(request_id="order-42", queue="other").enqueue(2) != first
    assert setting.double.using(request_id="order-42").enqueue(number=1) == first


TWENTY_PROCESSES = """
import os
from holdfast import Holdfast

app = Holdfast("sqlite:///tasks.db")

@app.task(name="double")
def double(number: int) -> int:
    return 2 * number

children = []
for _ in range(20):
    child = os.fork()
    if not child:
        task_id = double.using(request_id="order-42").enqueue(1).task_id
        os.write(1, (task_id + "\\n").encode())  # at once: the others write too
        app.close()
        os._exit(0)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""


def test_the_same_request_id_from_twenty_processes_gives_one_task(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TWENTY_PROCESSES)
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    ids = done.stdout.split()
    assert len(ids) == 20
    assert len(set(ids)) == 1


# -- the life of an app --------------------------------------------------------------------------------------


def test_making_an_app_and_declaring_tasks_opens_nothing(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/tasks.db")
    handle = app.task(name="double")(double).prepare(1)
    assert list(tmp_path.iterdir()) == []
    app.enqueue_many([handle])
    app.close()
    assert (tmp_path / "tasks.db").exists()


def test_the_url_comes_from_the_argument_then_the_environment_then_a_file_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Holdfast().url == f"sqlite:///{Path.cwd()}/holdfast.db"
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///other.db")
    assert Holdfast().url == f"sqlite:///{Path.cwd()}/other.db"
    assert Holdfast("sqlite://").url == "sqlite://"


def test_a_password_is_not_shown() -> None:
    assert repr(Holdfast("redis://me:secret@host/0")) == "Holdfast('redis://me:***@host/0')"


def test_a_closed_app_opens_again_on_the_next_use(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/tasks.db")
    handle = app.task(name="double")(double).enqueue(1)
    first = app.store
    app.close()
    app.close()
    assert handle.status().state is State.READY
    assert app.store is not first
    app.close()


def test_an_app_is_a_context_manager_both_ways(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/tasks.db")
    task_type = app.task(name="double")(double)

    async def main() -> str:
        async with app:
            handle = await task_type.aenqueue(1)
            assert app._stores.peek() is not None
        assert app._stores.peek() is None
        return handle.task_id

    task_id = asyncio.run(main())
    with app:
        assert app.handle(task_id).status().task_id == task_id
    assert app._stores.peek() is None


class Asked(PassingStore):
    """Counts the questions where tasks go."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.questions = 0

    async def placement(self) -> Placement:
        self.questions += 1
        return await self.inner.placement()


def test_a_store_that_is_opened_anew_is_asked_where_tasks_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before may have had other partitions."""
    opened: list[Asked] = []

    def open_asked(url: str) -> Store:
        opened.append(Asked(open_store(url)))
        return opened[-1]

    monkeypatch.setattr("holdfast.app.open_store", open_asked)
    app = Holdfast("sqlite://")
    task = app.task(name="double")(double)
    for _ in range(2):
        task.enqueue(1)
        task.enqueue(2)
        app.enqueue_many([task.prepare(3)])
        app.close()
    assert [store.questions for store in opened] == [1, 1]
