"""A sync `enqueue` on SQLite is made in the caller's own thread, or by the writer's, and never by the event loop."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import apsw
import pytest

from holdfast import Holdfast, Retry
from holdfast.core.partitions import PartitionMap
from holdfast.core.task import Enqueued, NewTask
from holdfast.errors import RequestConflict, StoreFull
from holdfast.stores import documents
from holdfast.stores.sqlite import direct
from holdfast.stores.sqlite import enqueue as inserting
from holdfast.stores.sqlite.call_thread import CallThread, SyncCall
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.sqlite.transaction import Transaction
from tests.worker.rig import new_task


def work(number: int) -> int:
    return number


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast(f"sqlite:///{tmp_path}/tasks.db") as app:
        app.task(name="work")(work)
        yield app


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tasks went over the event loop, call by call."""
    calls: list[int] = []
    whole = SqliteStore.enqueue

    async def noted(self: SqliteStore, tasks: list[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        calls.append(len(tasks))
        return await whole(self, tasks, map_version=map_version)

    monkeypatch.setattr(SqliteStore, "enqueue", noted)
    return calls


def enqueue(app: Holdfast, number: int) -> str:
    return app.task_types["work"].enqueue(number=number).task_id


def enqueue_by_the_writer(app: Holdfast, number: int) -> str:
    return app.task_types["work"].using(priority=1).enqueue(number=number).task_id


def state(app: Holdfast, task_id: str) -> str:
    return app.handle(task_id).status().state


def test_no_call_goes_over_the_event_loop(app: Holdfast, long_way: list[int]) -> None:
    ids = {enqueue(app, number) for number in range(20)}
    assert len(ids) == 20
    assert long_way == []


def test_threads_that_enqueue_at_once_are_each_answered(app: Holdfast, long_way: list[int]) -> None:
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: ids.extend(enqueue(app, number) for number in range(25))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 200
    assert long_way == []


def test_what_goes_wrong_is_told_by_the_long_way(
    app: Holdfast, long_way: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_transaction: Transaction, _tasks: list[NewTask]) -> list[Enqueued]:
        raise StoreFull("the disk is full; free some space and enqueue again")

    monkeypatch.setattr(inserting, "enqueue", full)
    with pytest.raises(StoreFull, match="free some space"):
        enqueue(app, 1)
    assert long_way == [1]


def test_a_signal_handler_enqueues_while_its_thread_waits_for_the_writer(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids: list[str] = []
    insert, interrupted, signals = inserting.enqueue, threading.Event(), [signal.SIGUSR1]

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        ids.append(enqueue_by_the_writer(app, 2))
        interrupted.set()

    def insert_and_interrupt(transaction: Transaction, tasks: list[NewTask]) -> list[Enqueued]:
        if signals:
            signal.pthread_kill(threading.main_thread().ident or 0, signals.pop())
        return insert(transaction, tasks)

    enqueue(app, 0)
    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        monkeypatch.setattr(inserting, "enqueue", insert_and_interrupt)
        ids.append(enqueue_by_the_writer(app, 1))
        assert interrupted.wait(10)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(set(ids)) == 2


@pytest.fixture
def writer_calls(monkeypatch: pytest.MonkeyPatch) -> list[SyncCall]:
    """The calls that went to the writer's thread."""
    calls: list[SyncCall] = []
    whole = CallThread.call_now

    def noted(self: CallThread, call: SyncCall) -> Any:
        calls.append(call)
        return whole(self, call)

    monkeypatch.setattr(CallThread, "call_now", noted)
    return calls


def test_all_but_the_first_are_enqueued_in_the_caller_s_thread(app: Holdfast, writer_calls: list[SyncCall]) -> None:
    ids = [enqueue(app, number) for number in range(20)]
    assert len(writer_calls) == 1
    assert [state(app, each) for each in ids] == ["ready"] * 20


def test_both_ways_write_the_same_rows(app: Holdfast, writer_calls: list[SyncCall], tmp_path: Path) -> None:
    kind = app.task_types["work"].using(
        queue="mail", headers={"tenant": "7"}, timeout="5s", retry=Retry(max_attempts=2, base="3s")
    )
    ids = [kind.using(request_id=name).enqueue(number=1).task_id for name in ("first", "second")]
    assert len(writer_calls) == 1
    connection = apsw.Connection(f"{tmp_path}/tasks.db")
    rows = [_row(connection, each) for each in ids]
    connection.close()
    assert rows[0] == rows[1]


def _row(connection: apsw.Connection, task_id: str) -> dict[str, Any]:
    """What was written for a task, without what differs between any two of them."""
    cursor = connection.execute("SELECT * FROM tasks JOIN envelopes USING (seq) WHERE task_id = ?", (task_id,))
    row = dict(zip((name for name, _ in cursor.getdescription()), next(cursor), strict=True))
    assert row["rank"] == row["run_at_ms"] == row["created_at_ms"]
    for name in ("seq", "task_id", "request_id", "rank", "run_at_ms", "created_at_ms"):
        del row[name]
    return row


def test_a_request_that_is_known_is_answered_with_its_task(app: Holdfast) -> None:
    enqueue(app, 0)
    kind = app.task_types["work"].using(request_id="once")
    first = kind.enqueue(number=1)
    assert kind.enqueue(number=1).task_id == first.task_id
    with pytest.raises(RequestConflict, match="once"):
        kind.enqueue(number=2)


def test_a_caller_with_an_old_map_is_refused(app: Holdfast) -> None:
    enqueue(app, 0)
    enqueue_now = app.store.capabilities.enqueue_now
    assert enqueue_now is not None
    asyncio.run(documents.put_partition_map(app.store, PartitionMap(version=1, shards=("", "other"))))
    assert enqueue_now([new_task(partition=0)], map_version=0) is None
    assert enqueue_now([new_task(partition=0)], map_version=1) is not None


def test_a_call_waits_for_a_writer_of_another_process(app: Holdfast, tmp_path: Path) -> None:
    enqueue(app, 0)
    other = apsw.Connection(f"{tmp_path}/tasks.db")
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.2, lambda: other.execute("COMMIT")).start()
    assert state(app, enqueue(app, 1)) == "ready"
    other.close()


@pytest.mark.parametrize("nested", [enqueue, enqueue_by_the_writer, None], ids=["direct", "writer", "fork"])
def test_a_signal_handler_may_come_at_any_line_of_a_call(
    app: Holdfast, nested: Callable[[Holdfast, int], str] | None
) -> None:
    enqueue(app, 0)
    engine = app.store._engine  # type: ignore[attr-defined]
    ids: list[str] = []

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if nested is not None:
            ids.append(nested(app, 2))
        else:
            engine.before_fork(time.monotonic() + 10)
            engine.after_fork_in_parent()

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        lines = 0
        while True:
            lines += 1
            enqueue_by_the_writer(app, 0)  # opens what a fork has closed
            tracer = _Interrupt(lines)
            sys.settrace(tracer)
            try:
                ids.append(enqueue(app, 1))
            finally:
                sys.settrace(None)
            if tracer.lines_left > 0:
                break
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert lines > 10
    assert len(set(ids)) == len(ids) == lines + (lines - 1 if nested is not None else 0)
    assert all(state(app, each) == "ready" for each in ids)


class _Interrupt:
    """Sends a signal at the n-th line that runs in direct.py."""

    def __init__(self, line: int) -> None:
        self.lines_left = line

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code.co_filename != direct.__file__:
            return None
        if event == "line":
            self.lines_left -= 1
            if self.lines_left == 0:
                signal.raise_signal(signal.SIGUSR1)
        return self
