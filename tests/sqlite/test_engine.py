"""The writer thread: one call's trouble is its own, every call is answered, and a file that goes away is noticed."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.clock import SystemClock
from holdfast.core import lifecycle
from holdfast.errors import StoreUnavailable
from holdfast.stores import documents
from holdfast.stores.open import open_store
from holdfast.stores.sqlite import connection, settlements
from holdfast.stores.sqlite.engine import Engine
from holdfast.stores.sqlite.transaction import Transaction
from tests.sqlite.test_full_disk import a_task, claim
from tests.support import eventually


@pytest.mark.parametrize("way", ["write", "read"])
def test_a_call_that_fails_takes_no_other_call_along(tmp_path: Path, way: str) -> None:
    """Whatever it raises: the others of its group are done, and done once."""
    writes, begin = [], threading.Event()

    def waits(_: Transaction) -> None:
        begin.wait(10)

    def writes_one(work: Transaction) -> int:
        work.connection.execute("CREATE TABLE IF NOT EXISTS t (x); INSERT INTO t VALUES (1)")
        writes.append(1)
        return len(writes)

    def fails(work: Transaction) -> None:
        if way == "write":
            work.connection.execute("CREATE TABLE IF NOT EXISTS t (x); INSERT INTO t VALUES (2)")
        "\ud800".encode()

    async def scenario() -> None:
        engine = Engine(str(tmp_path / "tasks.db"), SystemClock())
        call = engine.write if way == "write" else engine.read
        operations = [waits, writes_one if way == "write" else waits, fails, writes_one if way == "write" else waits]
        calls = [asyncio.ensure_future(call(operation)) for operation in operations]
        await asyncio.sleep(0)
        begin.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(answer, UnicodeEncodeError) for answer in answers] == [False, False, True, False]
        if way == "write":
            rows = await engine.read(lambda work: work.connection.execute("SELECT x FROM t").fetchall())
            assert rows == [(1,), (1,)]
        await engine.close()

    asyncio.run(scenario())


def test_a_key_that_cannot_be_stored_fails_its_own_call_only(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/tasks.db")
    noop = app.task(name="noop")(_noop)
    stop = threading.Event()

    async def keep() -> None:
        while not stop.is_set():
            with pytest.raises(UnicodeEncodeError):
                await documents.keep(app.store, "order \ud83d", b"1", 1_000, None)

    with app, ThreadPoolExecutor(5) as pool:
        noop.enqueue()
        trouble = pool.submit(asyncio.run, keep())
        done = [pool.submit(lambda: [noop.enqueue().task_id for _ in range(50)]) for _ in range(4)]
        assert len({task_id for each in done for task_id in each.result(60)}) == 200
        stop.set()
        trouble.result(10)


def _noop() -> None: ...


def test_results_too_long_for_one_statement_are_kept_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settlements, "_MAX_TEXT_BYTES", 1_000)

    async def scenario() -> None:
        store = open_store(f"sqlite:///{tmp_path}/tasks.db")
        await store.enqueue([a_task() for _ in range(3)])
        results = [b'"%s"' % (letter * 600) for letter in (b"a", b"b", b"c")]
        claims = await claim(store, 3)
        verdicts = await store.apply([
            lifecycle.ack(task.task_id, task.token, result) for task, result in zip(claims, results, strict=True)
        ])  # fmt: skip
        assert all(verdict.applied for verdict in verdicts)
        found = await store.get([task.task_id for task in claims])
        assert [task.result for task in found if task] == results
        await store.close()

    asyncio.run(scenario())


def test_every_call_is_answered_while_the_store_is_closed(tmp_path: Path) -> None:
    """A call that comes while another thread closes the store is done or refused, never forgotten."""

    async def scenario(number: int) -> None:
        engine = Engine(str(tmp_path / f"{number}.db"), SystemClock())
        calls = [asyncio.create_task(engine.read(lambda _: 1)) for _ in range(20)]
        closing = asyncio.create_task(engine.close())
        calls += [asyncio.create_task(engine.read(lambda _: 1)) for _ in range(20)]
        await closing
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            assert answer == 1 or isinstance(answer, StoreUnavailable)

    for number in range(20):
        asyncio.run(asyncio.wait_for(scenario(number), 30))


def test_a_call_that_is_put_after_the_last_one_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = Engine(str(tmp_path / "tasks.db"), SystemClock())
        await engine.read(lambda _: 1)
        await engine.close()
        engine._reader._closed = False  # as another thread saw it just before the close
        with pytest.raises(StoreUnavailable, match="the store is closed"):
            await asyncio.wait_for(engine.read(lambda _: 1), 10)

    asyncio.run(scenario())


@pytest.mark.parametrize("lost", ["holdfast.db*", "holdfast.db", "holdfast.db-wal"])
def test_a_deleted_file_is_noticed_told_of_and_opened_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Nothing is acknowledged into a file that nobody else can see."""
    path = tmp_path / "holdfast.db"

    async def scenario() -> None:
        store = open_store(f"sqlite:///{path}")
        await store.enqueue([a_task()])
        await store.counts()
        for file in tmp_path.glob(lost):
            if file.is_file():
                file.unlink()
        if lost == "holdfast.db-wal":  # the log is looked for now and then only
            monkeypatch.setattr(connection, "_LOG_LOOK_SECONDS", 0.0)
        with caplog.at_level(logging.ERROR, "holdfast.stores"):
            for call in (store.enqueue([a_task()]), store.counts()):
                with pytest.raises(StoreUnavailable, match="was deleted or replaced while it was in use"):
                    await call
        assert f"{path} was deleted or replaced" in caplog.text
        (answer,) = await store.enqueue([a_task()])
        other = open_store(f"sqlite:///{path}")
        assert None not in await other.get([answer.task_id])
        assert None not in await store.get([answer.task_id])
        await other.close()
        await store.close()

    asyncio.run(scenario())


def test_a_file_that_was_replaced_is_the_one_that_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, other = open_store(f"sqlite:///{tmp_path}/a.db"), open_store(f"sqlite:///{tmp_path}/b.db")
        await store.enqueue([a_task()])
        await store.counts()
        restored = a_task()
        await other.enqueue([restored])
        await other.close()
        (tmp_path / "b.db").rename(tmp_path / "a.db")
        for file in ("a.db-wal", "a.db-shm"):
            (tmp_path / file).unlink()
        for call in (store.counts(), documents.set_step(store, "q", 5)):
            with pytest.raises(StoreUnavailable):
                await call
        assert None not in await store.get([restored.task_id])
        await store.close()

    asyncio.run(scenario())


def test_a_signal_handler_may_call_while_the_thread_is_started(tmp_path: Path) -> None:
    """The writer is never waited for by a caller who has to let it start."""

    async def scenario() -> None:
        engine = Engine(str(tmp_path / "tasks.db"), SystemClock())
        call = asyncio.ensure_future(engine.write(lambda _: 1))
        await asyncio.sleep(0)
        engine._writer._started = False  # as if interrupted while it started the thread
        engine._writer._start_once()
        assert await asyncio.wait_for(call, 10) == 1
        assert await asyncio.wait_for(engine.write(lambda _: 2), 10) == 2
        await engine.close()
        assert engine._writer._gone

    before = set(threading.enumerate())  # other tests of this process may have left theirs
    asyncio.run(scenario())
    eventually(lambda: "holdfast-sqlite-writer" not in {thread.name for thread in set(threading.enumerate()) - before})
