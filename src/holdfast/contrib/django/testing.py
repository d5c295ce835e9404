"""A backend for tests: tasks run in the process of the test, when production would enqueue them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction

from holdfast.contrib.django.backend import HoldfastBackend
from holdfast.contrib.django.known_tasks import KnownTasks, known_tasks
from holdfast.contrib.django.settings import refused
from holdfast.producer.enqueue import Prepared
from holdfast.testing.app_test import AppTest
from holdfast.testing.session import Bridge


def _run_sync(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return async_to_sync(work)()


async def _in_thread(job: Callable[[], None]) -> None:
    await sync_to_async(job)()


#: Django's connections belong to threads: these are the ways between sync and async code that keep to the right one.
_BRIDGE = Bridge(_run_sync, _in_thread)


class TestBackend(HoldfastBackend):
    """Runs each task at once, or in a transaction of the tested code after its commit, as a worker would run it.

    It takes the OPTIONS of `HoldfastBackend`, so that only BACKEND changes in the settings for tests; tasks are in
    memory, whatever `url` says. Two OPTIONS of its own: `eager` (True), and `raises` (False).
    """

    __test__ = False

    def _known_tasks(self, options: dict[str, Any]) -> KnownTasks:
        others = {name: value for name, value in options.items() if name not in {"eager", "raises"}}
        self._eager = self._flag("eager", options.get("eager", True))
        self._raises = self._flag("raises", options.get("raises", False))
        known = known_tasks(self.alias, {**others, "url": "sqlite://"}, in_tests=True)
        self._place = _place_of(known)
        return known

    def _flag(self, name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise refused(self.alias, f"{name}: {value!r} is not True or False")
        return value

    @property
    def test(self) -> AppTest:
        """The test of the app: its clock, `run_due()` and `advance()`."""
        return self._place.test

    def clear(self) -> None:
        """Forgets all tasks, and sets the clock to the present time: for `setUp`."""
        self._place.clear()

    # -- running ------------------------------------------------------------------------------------------------

    def _in_transaction(self, database: str) -> bool:
        """Leaves out the transaction in which a `TestCase` puts each test, which production does not have."""
        connection = connections[database]
        if not connection.in_atomic_block:
            return super()._in_transaction(database)
        return not all(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)

    def _enqueue_within(self, call: Prepared[Any], result: Any, database: str) -> Any:
        return self._enqueue_after_commit(call, result, database)

    def _enqueue_now(self, call: Prepared[Any], result: Any) -> Any:
        super()._enqueue_now(call, result)
        self._run(result)
        return result

    def _enqueue_after_commit(self, call: Prepared[Any], result: Any, database: str) -> Any:
        super()._enqueue_after_commit(call, result, database)
        transaction.on_commit(partial(self._run, result), using=database)
        return result

    def _run(self, result: Any) -> None:
        if self._eager:
            self.test.run_tasks([result.id], raises=self._raises)
            result.refresh()

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """As `enqueue`, for async callers."""
        result = await super().aenqueue(task, args, kwargs)
        if self._eager and not result.is_finished and result.enqueued_at is not None:
            await self.test.arun_tasks([result.id], raises=self._raises)
            await result.arefresh()
        return result


class _Place:
    """The test of one app, for all threads and for the life of the process."""

    def __init__(self, known: KnownTasks) -> None:
        self._known = known
        self.test = self._opened()

    def _opened(self) -> AppTest:
        return AppTest(self._known.app, bridge=_BRIDGE).__enter__()

    def clear(self) -> None:
        """Begins anew."""
        self.test.__exit__(None, None, None)
        self.test = self._opened()


_places: dict[KnownTasks, _Place] = {}
_lock = threading.Lock()


def _place_of(known: KnownTasks) -> _Place:
    with _lock:
        place = _places.get(known)
        if place is None:
            place = _places[known] = _Place(known)
        return place
