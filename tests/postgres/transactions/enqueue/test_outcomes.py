"""A task is there if and only if the transaction committed that it was recorded in."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import msgspec
import psycopg
import pytest

from holdfast import Retry
from holdfast.core.task import State, Task
from holdfast.errors import RequestConflict, UnknownTask
from tests.postgres.transactions.enqueue.sessions import Writer, opened
from tests.postgres.transactions.enqueue.shop import Shop
from tests.support import eventually


def test_commit_makes_exactly_one(shop: Shop, writer: Writer) -> None:
    writer.execute("INSERT INTO orders VALUES ('a')")
    handle = writer.enqueue(shop.ship, "a")
    with pytest.raises(UnknownTask):
        handle.status()
    writer.commit()
    assert shop.orders() == shop.tasks() == ["a"]
    assert handle.status().state is State.READY


def test_rollback_makes_none(shop: Shop, writer: Writer) -> None:
    writer.execute("INSERT INTO orders VALUES ('a')")
    handle = writer.enqueue(shop.ship, "a")
    writer.rollback()
    with pytest.raises(UnknownTask):
        handle.status()
    assert shop.orders() == shop.tasks() == []


def test_session_is_good_for_the_next_transaction(shop: Shop, writer: Writer) -> None:
    for name, commits in (("a", True), ("b", False), ("c", True)):
        writer.execute(f"INSERT INTO orders VALUES ('{name}')")
        writer.enqueue(shop.ship, name)
        writer.commit() if commits else writer.rollback()
    assert shop.orders() == shop.tasks() == ["a", "c"]


def test_what_was_recorded_since_a_savepoint_goes_with_it(shop: Shop, writer: Writer) -> None:
    writer.enqueue(shop.ship, "before")
    writer.savepoint()
    writer.enqueue(shop.ship, "undone")
    writer.undo()
    writer.savepoint()
    writer.enqueue(shop.ship, "released")
    writer.release()
    writer.commit()
    assert shop.tasks() == ["before", "released"]


def test_task_is_the_same_as_one_recorded_without_a_transaction(shop: Shop, writer: Writer) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"queue": "mail", "priority": 5, "headers": {"trace": 'ü"\\%s:x {}'}, "request_id": "order-1:%s"},
        {"delay": "2h", "retry": Retry(max_attempts=2, base="3s")},
        {"run_at": datetime(2100, 1, 1, tzinfo=UTC)},
        {"run_at": datetime(2000, 1, 1, tzinfo=UTC)},
    ]
    text = "ü \\ \" ' % %s %(x)s :name {} \0 🙂"
    alone = [shop.ship.using(**{**each, "request_id": None}).enqueue(text).status().record for each in options]
    handles = [writer.enqueue(shop.ship.using(**each), text) for each in options]
    writer.commit()
    together = [handle.status().record for handle in handles]
    assert [_comparable(task) for task in together] == [_comparable(task) for task in alone]
    assert [task.request_id for task in together] == [each.get("request_id") for each in options]


def _comparable(task: Task) -> Task:
    """Without its id, and to the day."""
    days = None if task.run_at_ms is None else (task.run_at_ms - task.created_at_ms) // 86_400_000
    return msgspec.structs.replace(task, task_id="", created_at_ms=0, run_at_ms=days, request_id=None)


def test_many_in_order_and_in_more_than_one_batch(shop: Shop, writer: Writer) -> None:
    ship = shop.ship.using(transaction=writer.transaction)
    names = [f"{n:04}" for n in range(1_100)]
    handles = writer.enqueue_many(shop.app, (ship.prepare(name) for name in names))
    assert shop.tasks() == []
    writer.commit()
    assert shop.tasks() == names
    assert [handle.status().args for handle in (handles[0], handles[-1])] == [{"order": "0000"}, {"order": "1099"}]


def test_request_id_stands_for_one_task(shop: Shop, writer: Writer) -> None:
    earlier = shop.ship.using(request_id="r1").enqueue("a")
    ship = shop.ship.using(request_id="r1")
    assert writer.enqueue(ship, "a") == earlier
    new = writer.enqueue(shop.ship.using(request_id="r2"), "b")
    assert writer.enqueue(shop.ship.using(request_id="r2"), "b") == new
    with pytest.raises(RequestConflict, match="already stands for another ship call"):
        writer.enqueue(ship, "something else")
    writer.commit()  # a conflict has not spoilt it
    assert shop.tasks() == ["a", "b"]


@pytest.mark.parametrize("commits", [True, False])
def test_uncommitted_duplicate_is_waited_for(shop: Shop, commits: bool) -> None:
    ship = shop.ship.using(request_id="r")
    found: list[Any] = []
    with opened("psycopg", shop.url) as first, opened("psycopg", shop.url) as second:
        earlier = first.enqueue(ship, "a")
        thread = threading.Thread(target=lambda: found.append(second.enqueue(ship, "a")))
        thread.start()
        eventually(lambda: shop.query("SELECT pid FROM pg_locks WHERE NOT granted"), what="the second to wait")
        assert found == []
        first.commit() if commits else first.rollback()
        thread.join(10)
        second.commit()
    assert (found == [earlier]) is commits
    assert shop.tasks() == ["a"]


def test_search_path_of_the_session_does_not_matter(shop: Shop, writer: Writer) -> None:
    writer.execute("CREATE TEMPORARY TABLE tasks (no integer) ON COMMIT DROP")
    writer.execute("SET LOCAL search_path TO pg_temp")
    writer.enqueue(shop.ship, "a")
    writer.commit()
    assert shop.tasks() == ["a"]


def test_commit_is_made_as_safe_as_the_store_promises(shop: Shop) -> None:
    with opened("psycopg", shop.url) as session:
        session.execute("SET synchronous_commit = off")
        session.commit()
        session.enqueue(shop.ship, "a")
        assert session.transaction.execute("SHOW synchronous_commit").fetchone() == ("local",)
        session.commit()
        assert session.transaction.execute("SHOW synchronous_commit").fetchone() == ("off",)
        session.execute("SET LOCAL synchronous_commit = remote_apply")
        session.enqueue(shop.ship, "b")
        assert session.transaction.execute("SHOW synchronous_commit").fetchone() == ("remote_apply",)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_isolation_of_the_transaction_is_kept(shop: Shop, level: str) -> None:
    shop.ship.enqueue("so that there is a store")
    with opened("psycopg", shop.url) as session:
        session.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        session.execute("SELECT count(*) FROM orders")
        shop.ship.using(request_id="r").enqueue("a")
        session.enqueue(shop.ship.using(queue="new", delay="1m"), "b")
        with pytest.raises(psycopg.errors.SerializationFailure):  # it may not see what it would have to answer with
            session.enqueue(shop.ship.using(request_id="r"), "a")
        session.rollback()
        session.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        session.enqueue(shop.ship.using(queue="new", delay="1m"), "b")
        session.commit()
    assert shop.tasks() == ["a", "b", "so that there is a store"]
