"""The inside of a child without its process: slots, executors and fetcher on a store in memory."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from holdfast import Holdfast
from holdfast.clock import Clock, SystemClock
from holdfast.core.arguments import ArgumentCodec
from holdfast.core.fairness import StrictOrder
from holdfast.core.ids import IdSource
from holdfast.core.lifecycle import Change
from holdfast.core.payload import MAX_BYTES
from holdfast.core.retry import DEFAULT_POLICY, RunPolicy
from holdfast.core.task import Claimed, NewTask, State, Task
from holdfast.producer.enqueue import Recorder
from holdfast.producer.options import Options
from holdfast.producer.task_type import TaskType
from holdfast.security.crypto import PayloadCrypto
from holdfast.security.keys import parse_keys
from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from holdfast.worker.child.execute import run_coroutine, run_function, unexplained
from holdfast.worker.child.executors import (
    LoopExecutor,
    Middleware,
    MiddlewareChain,
    ThreadExecutor,
    surrounding,
)
from holdfast.worker.child.hooks import with_hooks
from holdfast.worker.child.loop import ClaimOptions, Fetcher
from holdfast.worker.child.run import Run, RunContext
from holdfast.worker.child.slots import EndedRuns, Slots
from holdfast.worker.protocol import FromChild, Held
from holdfast.worker.recycle import RecycleLimits
from tests.support import ENCRYPTED, KEYS

IDS = IdSource(SystemClock().now_ms, os.urandom)


@functools.cache
def crypto_in_use() -> PayloadCrypto | None:
    """How the task types of these tests sign and encrypt, if they do."""
    if not ENCRYPTED:
        return None
    keys = parse_keys(KEYS)
    return PayloadCrypto(keys["sign"], keys["encrypt"], MAX_BYTES, os.urandom, SystemClock().now_ms)


def task_type(function: Callable[..., Any], is_async: bool = True) -> TaskType[..., Any]:
    """A task type `work` of this function, which cannot be enqueued."""
    options = Options(crypto=crypto_in_use())
    return TaskType("work", function, is_async, ArgumentCodec(function, "work"), options, cast("Recorder", None))


def claimed(payload: bytes = b"{}", attempt: int = 1, policy: RunPolicy = DEFAULT_POLICY) -> Claimed:
    """A task under a claim."""
    task = new_task(payload, policy)
    now_ms = SystemClock().now_ms()
    return Claimed(
        task.task_id, "1.1.abc", "work", "default", task.payload, task.headers, 0, policy, attempt, now_ms, now_ms
    )


def new_task(payload: bytes = b"{}", policy: RunPolicy = DEFAULT_POLICY, partition: int = 0) -> NewTask:
    """A task as a producer would record it."""
    task = NewTask(task_id=IDS.task_id(partition), type="work", queue="default", payload=payload, policy=policy)
    crypto = crypto_in_use()
    return task if crypto is None else crypto.task(task)


def plain(ended: Change | Task) -> bytes | None:
    """The result of a task of this file as its function gave it, from the task or from the change that ends it."""
    crypto = crypto_in_use()
    if crypto is None or ended.result is None:
        return ended.result
    task = Task(
        task_id=ended.task_id,
        type="work",
        queue="default",
        state=State.SUCCEEDED,
        priority=0,
        attempt=1,
        deliveries=1,
        created_at_ms=0,
        run_at_ms=0,
    )
    return crypto.opened_result(task, ended.result)


def plain_memo(key: str, kept: bytes | None) -> bytes | None:
    """What a step has given, from what is kept under its key."""
    crypto = crypto_in_use()
    return kept if crypto is None or kept is None else crypto.opened_kept(key, kept)


def memo(key: str, value: bytes) -> bytes:
    """What is kept under a key when a step has given this."""
    crypto = crypto_in_use()
    return value if crypto is None else crypto.kept(key, value)


def run_of(
    function: Callable[..., Any],
    task: Claimed | None = None,
    *,
    is_async: bool = False,
    context: RunContext | None = None,
) -> Run:
    """A run of this function that has not begun."""
    deadline_ms = SystemClock().monotonic_ms() + 60_000
    return Run(1, task or claimed(), task_type(function, is_async), 1, deadline_ms, context)


class Rig:
    """A fetcher that works on `store` and runs `function` for every task."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        slots: int = 10,
        slow_start: bool = False,
        store: Store | None = None,
        clock: Clock | None = None,
        is_async: bool = True,
        recycle: RecycleLimits | None = None,
        middlewares: Sequence[Middleware] = (),
        app: Holdfast | None = None,
        some_types_only: bool = False,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.store = store or open_store("sqlite://")
        self.told: list[Held] = []
        #: All else that the supervisor was told.
        self.news: list[FromChild] = []
        self.started: list[int] = []
        self.most_running = 0
        self.slots = Slots(loop, slots, slow_start=slow_start, on_end=EndedRuns(loop, self._send).note)
        self._executor: LoopExecutor | ThreadExecutor[Run, Change | None]
        surround = None if app is None else surrounding(app.sync_middlewares)
        finish = self.slots.finish if app is None else with_hooks(app, loop, self.slots.finish, ThreadExecutor)
        if middlewares:
            self._executor = LoopExecutor(
                loop, MiddlewareChain(loop, middlewares, surround=surround).perform, finish, unexplained
            )
        elif is_async:
            self._executor = LoopExecutor(loop, run_coroutine, finish, unexplained)
        else:
            in_thread = functools.partial(run_function, surround=surround)
            self._executor = ThreadExecutor(loop, in_thread, finish, unexplained)
        #: What runs the hooks of the app.
        self.hooks: Any = getattr(finish, "__self__", None)
        self.type = task_type(function, is_async)
        claims = ClaimOptions(
            "tester",
            30_000,
            StrictOrder(["default"]),
            {"work": self.type},
            IDS,
            some_types_only=some_types_only,
        )
        self.context = RunContext(self.store, loop, keeps_errors=app is not None)
        self.fetcher = Fetcher(
            self.context,
            self.slots,
            claims,
            clock or SystemClock(),
            send=self._send,
            start=self._start,
            recycle=recycle,
        )
        self.task_ids: list[str] = []

    async def enqueue(self, count: int, payload: bytes = b"{}", policy: RunPolicy = DEFAULT_POLICY) -> None:
        """Records tasks for it."""
        tasks = [new_task(payload, policy) for _ in range(count)]
        self.task_ids += [task.task_id for task in tasks]
        await self.store.enqueue(tasks)

    async def tasks(self) -> list[Task]:
        """All tasks that were recorded, with plain results."""
        found = [task for task in await self.store.get(self.task_ids) if task is not None]
        return [msgspec.structs.replace(task, result=plain(task)) for task in found]

    async def until(self, state: State, count: int) -> None:
        """Waits until this many tasks are in this state."""
        async with asyncio.timeout(30):
            while sum(task.state is state for task in await self.tasks()) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def until_started(self, count: int) -> None:
        """Waits until this many runs have begun."""
        async with asyncio.timeout(30):
            while len(self.started) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def drain(self, state: State = State.SUCCEEDED) -> None:
        """Runs until all recorded tasks are in this state, then until it is quiet."""
        working = asyncio.create_task(self.fetcher.run())
        await self.until(state, len(self.task_ids))
        self.fetcher.quiet()
        await asyncio.wait_for(working, 10)

    def held(self) -> set[int]:
        """The keys that the supervisor knows of."""
        keys: set[int] = set()
        for message in self.told:
            keys -= set(message.drop)
            keys |= {task.key for task in message.add}
        return keys

    async def _send(self, message: FromChild) -> None:
        if isinstance(message, Held):
            self.told.append(message)
        else:
            self.news.append(message)

    def _start(self, run: Run) -> None:
        assert run.key in self.held(), "a task was started before the supervisor knew of it"
        self.started.append(run.key)
        self.most_running = max(self.most_running, len(self.slots.running))
        self._executor.start(run)
