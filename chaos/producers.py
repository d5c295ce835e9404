"""Producers: a steady stream of orders, each sent with a request_id until it is acknowledged or given up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from random import Random
from typing import Final

from chaos.journal import Journal, Order
from chaos.tasks import DELAY_MS, QUEUES, make_app
from holdfast.errors import HoldfastError, StoreError
from holdfast.producer.enqueue import Prepared
from holdfast.producer.task_type import TaskType

_PRODUCERS: Final = 16
_BATCH: Final = 10
#: After an outage the missed orders are sent as well, but not more than those of this many seconds.
_CATCH_UP_SECONDS: Final = 10.0
#: How often an order is repeated by hand after the deadline of the client.
_TRIES: Final = 5
_SHARE_OF_REPEATS: Final = 0.05
#: Some calls are given up in the middle after a short time: whether their orders were recorded is not known then.
_SHARE_OF_HASTY: Final = 0.1
_HASTY_SECONDS: Final = 0.3
#: Some single orders are sent as sync code does it: from a thread that blocks, by a way of its own.
_SHARE_OF_BLOCKING: Final = 0.3


class Producers:
    """Some coroutines of one process that share a rate."""

    def __init__(self, url: str, journal: Journal, per_second: int) -> None:
        self._app, self._task_type = make_app(url)
        self._journal = journal
        self._random = Random(journal.seed)  # noqa: S311
        self._per_second = per_second
        self._next_at = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Goes on until told to stop; what is under way then is finished."""
        self._next_at = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_PRODUCERS):
                    group.create_task(self._produce(stop))
        finally:
            await self._app.aclose()

    async def _produce(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            orders = self._new_orders(self._random.choice((1, _BATCH)))
            await asyncio.sleep(self._time_until_turn(len(orders)))
            await self._send(orders)

    def _time_until_turn(self, count: int) -> float:
        now = time.monotonic()
        self._next_at = max(self._next_at, now - _CATCH_UP_SECONDS) + count / self._per_second
        return max(0.0, self._next_at - now)

    def _new_orders(self, count: int) -> list[Order]:
        return [self._new_order() for _ in range(count)]

    def _new_order(self) -> Order:
        kind = self._random.choices(("plain", "slow", "flaky", "delayed"), (85, 3, 6, 6))[0]
        return self._journal.new_order(self._random.choice(QUEUES), kind)

    async def _send(self, orders: Sequence[Order]) -> None:
        if self._random.random() < _SHARE_OF_HASTY:
            await self._send_hastily(orders)
        elif await self._send_patiently(orders) and self._random.random() < _SHARE_OF_REPEATS:
            # As a client does that lost the answer: they must be the same tasks.
            self._journal.repeats += len(orders)
            await self._send_patiently(orders)

    async def _send_hastily(self, orders: Sequence[Order]) -> None:
        try:
            async with asyncio.timeout(_HASTY_SECONDS):
                await self._enqueue(orders)
        except (StoreError, TimeoutError) as error:
            self._note_error(orders, error)

    async def _send_patiently(self, orders: Sequence[Order]) -> bool:
        blocking = len(orders) == 1 and self._random.random() < _SHARE_OF_BLOCKING
        for _ in range(_TRIES):
            try:
                await (self._enqueue_blocking(orders[0]) if blocking else self._enqueue(orders))
                return True
            except StoreError as error:
                self._note_error(orders, error)
            except HoldfastError as error:
                self._journal.violated("R3 dedup", f"{_named(orders)}: {error}")
                return False
        return False

    def _note_error(self, orders: Sequence[Order], error: Exception) -> None:
        self._journal.errors += 1
        self._journal.note("producer", f"{_named(orders)}: {error or 'given up'}")

    async def _enqueue(self, orders: Sequence[Order]) -> None:
        handles = await self._app.aenqueue_many(self._prepared(order) for order in orders)
        for order, handle in zip(orders, handles, strict=True):
            self._journal.acknowledge(order, handle.task_id)

    async def _enqueue_blocking(self, order: Order) -> None:
        handle = await asyncio.to_thread(self._typed(order).enqueue, order.number, order.kind)
        self._journal.acknowledge(order, handle.task_id)

    def _prepared(self, order: Order) -> Prepared[int]:
        return self._typed(order).prepare(order.number, order.kind)

    def _typed(self, order: Order) -> TaskType[[int, str], int]:
        typed = self._task_type.using(queue=order.queue, request_id=order.request_id)
        return typed.using(delay=DELAY_MS / 1000) if order.kind == "delayed" else typed


def _named(orders: Sequence[Order]) -> str:
    return orders[0].request_id + (f" and {len(orders) - 1} more" if len(orders) > 1 else "")
