"""After the commit somebody is woken, at once where the library tells of commits, else by the maintenance."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.stores.open import open_store
from tests.postgres.transactions.enqueue.sessions import KINDS, opened
from tests.postgres.transactions.enqueue.shop import Shop
from tests.support import ROOT, eventually, run_worker

TELLING = [kind for kind in KINDS if not kind.startswith("psycopg")]


class _Sleeper(threading.Thread):
    """Waits for the bell of a queue, in a store of its own; nothing else would ring it."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self.rung = False

    def run(self) -> None:
        asyncio.run(self._wait())

    async def _wait(self) -> None:
        store = open_store(self._url)
        try:
            deadline = time.monotonic() + 30
            # As a worker does: a wait without a listener, as the first one may be, is over after a second.
            while not self.rung and time.monotonic() < deadline:
                self.rung = await store.wait(["default"], 20_000)
        finally:
            await store.close()


@contextmanager
def _sleeper(shop: Shop) -> Iterator[_Sleeper]:
    sleeper = _Sleeper(shop.url)
    sleeper.start()
    eventually(lambda: _is_waited(shop), what="somebody to wait")
    try:
        yield sleeper
    finally:
        sleeper.join(60)


def _is_waited(shop: Shop) -> bool:
    there = shop.query("SELECT to_regclass('holdfast.waiting')") != [(None,)]
    return there and bool(shop.query("SELECT 1 FROM holdfast.waiting WHERE wakeup = 'default'"))


@pytest.mark.parametrize("kind", TELLING)
def test_commit_wakes_one_who_waits(shop: Shop, kind: str) -> None:
    with _sleeper(shop) as sleeper, opened(kind, shop.url) as session:
        session.savepoint()
        session.enqueue(shop.ship, "a")
        session.release()
        eventually(lambda: _is_waited(shop), what="somebody to wait still")
        session.commit()
        _run_on(session, sleeper)
    assert sleeper.rung


def _run_on(session: object, sleeper: _Sleeper) -> None:
    """Gives the event loop of an async application, if it has one, time to send the ring."""

    runs = getattr(session, "run", None)
    if runs is not None:
        runs(lambda: asyncio.to_thread(sleeper.join))


@pytest.mark.parametrize("kind", [kind for kind in TELLING if "session" in kind])
def test_one_listener_however_many_tasks(shop: Shop, kind: str) -> None:
    with opened(kind, shop.url) as session:
        for n in range(20):
            session.enqueue(shop.ship, str(n))
            session.rollback() if n % 2 else session.commit()
        sync_session = getattr(session.transaction, "sync_session", session.transaction)
        assert len(list(sync_session.dispatch.after_commit)) == 1
        assert len(sync_session.info["holdfast.notifications"]) == 1


def test_session_that_is_let_go_is_let_go(shop: Shop) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    engine = create_engine(shop.url.replace("postgresql:", "postgresql+psycopg:"))
    session = Session(engine)
    shop.ship.using(transaction=session).enqueue("a")
    session.close()
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None
    engine.dispose()


def test_app_that_was_closed_does_not_hinder_the_commit(shop: Shop) -> None:
    with opened("sqlalchemy session", shop.url) as session:
        session.enqueue(shop.ship, "a")
        shop.app.close()
        session.commit()
    assert shop.tasks() == ["a"]


@pytest.mark.parametrize("kind", ["psycopg", "django"])
def test_worker_runs_it_once(shop: Shop, kind: str) -> None:
    app = "tests.postgres.transactions.enqueue.app:app"
    with run_worker(app, shop.url, "--processes", "1", cwd=ROOT) as worker, opened(kind, shop.url) as session:
        eventually(lambda: _is_waited(shop), 30, worker.output())
        session.enqueue(shop.ship, "undone")
        session.rollback()
        handle = session.enqueue(shop.ship, "a")
        # Others overtake it, so that the place where it belongs is passed by when it is committed.
        assert shop.ship.enqueue("later").result(timeout=30) == "shipped later"
        session.commit()
        assert handle.result(timeout=30) == "shipped a"
    assert shop.tasks() == ["a", "later"]
