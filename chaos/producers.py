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
from holdfast.producer.recorder import Prepared

_PRODUCERS: Final = 16
_BATCH: Final = 10
#: After an outage the missed orders are sent as well, but not more than those of so many seconds.
_CATCH_UP_SECONDS: Final = 2.0
#: How often an order is repeated by hand after all the patience of the client.
_TRIES: Final = 5
_SHARE_OF_REPEATS: Final = 0.05
#: A producer that gives up at the first error leaves orders of which nobody knows whether they were recorded.
_SHARE_OF_GIVING_UP: Final = 0.2


class Producers:
    """Some coroutines of one process that share a rate."""

    def __init__(self, url: str, journal: Journal, per_second: int) -> None:
        self._app, self._task_type = make_app(url)
        self._journal = journal
        self._random = Random(journal.seed)  # noqa: S311
        self._per_second = per_second
        self._next_at = 0.0
        self._number = 0

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
            await self._send(orders, self._random.random() < _SHARE_OF_GIVING_UP)

    def _time_until_turn(self, count: int) -> float:
        now = time.monotonic()
        self._next_at = max(self._next_at, now - _CATCH_UP_SECONDS) + count / self._per_second
        return max(0.0, self._next_at - now)

    def _new_orders(self, count: int) -> list[Order]:
        return [self._new_order() for _ in range(count)]

    def _new_order(self) -> Order:
        self._number += 1
        kind = self._random.choices(("plain", "slow", "flaky", "delayed"), (85, 3, 6, 6))[0]
        order = Order(f"r{self._journal.seed}-{self._number}", self._number, self._random.choice(QUEUES), kind)
        self._journal.orders[order.request_id] = order
        return order

    async def _send(self, orders: Sequence[Order], gives_up: bool) -> None:
        for _ in range(1 if gives_up else _TRIES):
            try:
                await self._enqueue(orders)
                break
            except StoreError as error:
                self._journal.errors += 1
                self._journal.note("producer", f"{orders[0].request_id} and {len(orders) - 1} more: {error}")
            except HoldfastError as error:
                self._journal.violated("R3 dedup", f"{orders[0].request_id} and {len(orders) - 1} more: {error}")
                return
        else:
            return
        if self._random.random() < _SHARE_OF_REPEATS:
            await self._repeat(orders)

    async def _enqueue(self, orders: Sequence[Order]) -> None:
        handles = await self._app.aenqueue_many(self._prepared(order) for order in orders)
        now = time.time()
        for order, handle in zip(orders, handles, strict=True):
            self._acknowledge(order, handle.task_id, now)

    def _acknowledge(self, order: Order, task_id: str, now: float) -> None:
        if order.task_id is None:
            order.task_id, order.acknowledged_at = task_id, now
            self._journal.acknowledged.append(now)
            self._journal.note("producer", f"{order.request_id} ({order.kind}) acknowledged", task_id)
        elif order.task_id != task_id:
            self._journal.violated("R3 dedup", f"{order.request_id} is now {task_id}", order.task_id)

    async def _repeat(self, orders: Sequence[Order]) -> None:
        """The same orders again, as a client does that lost the answer: they must be the same tasks."""
        try:
            await self._enqueue(orders)
            self._journal.repeats += len(orders)
        except StoreError as error:
            self._journal.errors += 1
            self._journal.note("producer", f"repeat of {orders[0].request_id}: {error}")

    def _prepared(self, order: Order) -> Prepared[int]:
        typed = self._task_type.using(queue=order.queue, request_id=order.request_id)
        if order.kind == "delayed":
            typed = typed.using(delay=DELAY_MS / 1000)
        return typed.prepare(order.number, order.kind)
