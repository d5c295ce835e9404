"""Hands tasks to the store: in batches, under ids made here, so that a lost reply never makes a second task."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from holdfast.core.ids import IdSource
from holdfast.core.task import Enqueued, NewTask
from holdfast.errors import BadOption, RequestConflict
from holdfast.producer.handle import TaskHandle
from holdfast.producer.link import Link
from holdfast.producer.options import Options
from holdfast.producer.portal import finished
from holdfast.stores.contract import MAX_BATCH, Placement, Store
from holdfast.stores.transactions import Transaction, within

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Prepared(Generic[R_co]):
    """One call, checked and encoded, not yet recorded; `enqueue_many` takes many of them."""

    __slots__ = ("decode", "options", "payload", "type")

    def __init__(self, type_name: str, options: Options, payload: bytes, decode: Callable[[bytes], R_co]) -> None:
        self.type = type_name
        self.options = options
        self.payload = payload
        self.decode = decode

    def __repr__(self) -> str:
        return f"Prepared({self.type!r}, {self.payload!r})"


class Recorder:
    """Records prepared calls as tasks."""

    def __init__(self, link: Link, ids: IdSource) -> None:
        self.link = link
        self._ids = ids
        #: The store that was asked, and its answer, which holds for as long as that store is open.
        self._placement: tuple[Store | None, Placement | None] = None, None

    async def arecord_one(self, call: Prepared[R]) -> TaskHandle[R]:
        """Durable when it returns, or with the commit of the transaction that it is recorded in."""
        if call.options.transaction is not None:
            (handle,) = await self._arecord_within(call.options.transaction, [call])
            return handle
        batch = [call]
        (handle,) = await self._record(batch, self._new_tasks(batch, await self._place()))
        return handle

    def record_one(self, call: Prepared[R]) -> TaskHandle[R]:
        """As `arecord_one`, for sync callers: in this very thread if the store can, else in the link's event loop."""
        if call.options.transaction is not None:
            (handle,) = self._record_within(call.options.transaction, [call])
            return handle
        batch, store = [call], self.link.store()
        tasks = self._new_tasks(batch, self._known_place(store) or self.link.run(self._place()))
        answers = store.enqueue_now(tasks)
        (handle,) = self.link.run(self._record(batch, tasks)) if answers is None else self._handles(batch, answers)
        return handle

    async def aenqueue_many(self, calls: Iterable[Prepared[R]]) -> list[TaskHandle[R]]:
        """Records any number of calls, batch by batch: one is on its way while the next is prepared."""
        transaction, calls = _transaction_of(calls)
        if transaction is not None:
            return await self._arecord_within(transaction, calls)
        place = await self._place()
        handles: list[TaskHandle[R]] = []
        under_way: list[asyncio.Task[list[TaskHandle[R]]]] = []  # one at most
        try:
            for batch in batches(calls):
                tasks = self._new_tasks(batch, place)
                if under_way:
                    handles += await under_way.pop()
                under_way.append(asyncio.create_task(self._record(batch, tasks)))
                await asyncio.sleep(0)  # so that it gets on its way
        finally:
            if under_way:
                handles += await under_way.pop()
        return handles

    def enqueue_many(self, calls: Iterable[Prepared[R]]) -> list[TaskHandle[R]]:
        """As `aenqueue_many`, for sync callers; `calls` is consumed in the caller's thread."""
        transaction, calls = _transaction_of(calls)
        if transaction is not None:
            return self._record_within(transaction, calls)
        place = self.link.run(self._place())
        handles: list[TaskHandle[R]] = []
        under_way: list[Future[Iterable[TaskHandle[R]]]] = []  # one at most
        try:
            for batch in batches(calls):
                tasks = self._new_tasks(batch, place)
                if under_way:
                    handles += finished(under_way.pop())
                under_way.append(self.link.start(self._record(batch, tasks)))
        finally:
            if under_way:
                handles += finished(under_way.pop())
        return handles

    def _record_within(self, transaction: Transaction, calls: Iterable[Prepared[R]]) -> list[TaskHandle[R]]:
        """Records calls in a transaction of the caller's, which is not repeated, and whose commit is not ours."""
        store = self.link.store()
        joined, place = within(store), self._known_place(store) or self.link.run(self._place())
        handles: list[TaskHandle[R]] = []
        for batch in batches(calls, transaction):
            answers = joined.enqueue(transaction, self._new_tasks(batch, place), self.link)
            handles += self._handles(batch, answers)
        return handles

    async def _arecord_within(self, transaction: Transaction, calls: Iterable[Prepared[R]]) -> list[TaskHandle[R]]:
        joined, place = within(self.link.store()), await self._place()
        handles: list[TaskHandle[R]] = []
        for batch in batches(calls, transaction):
            answers = await joined.aenqueue(transaction, self._new_tasks(batch, place), self.link)
            handles += self._handles(batch, answers)
        return handles

    async def _record(self, batch: Sequence[Prepared[R]], tasks: Sequence[NewTask]) -> list[TaskHandle[R]]:
        return self._handles(batch, await self.link.insist(lambda store: store.enqueue(tasks)))

    async def _place(self) -> Placement:
        store = self.link.store()
        place = self._known_place(store)
        if place is None:
            place = await self.link.insist(lambda store: store.placement())
            self._placement = store, place
        return place

    def _known_place(self, store: Store) -> Placement | None:
        asked, place = self._placement
        return place if asked is store else None

    def _handles(self, batch: Sequence[Prepared[R]], answers: Sequence[Enqueued]) -> list[TaskHandle[R]]:
        _refuse_conflicts(answers)
        link = self.link
        return [TaskHandle(link, answer.task_id, each.decode) for each, answer in zip(batch, answers, strict=True)]

    def _new_tasks(self, batch: Sequence[Prepared[Any]], place: Placement) -> list[NewTask]:
        return [self._new_task(call, place) for call in batch]

    def _new_task(self, call: Prepared[Any], place: Placement) -> NewTask:
        options = call.options
        return options.new_task(self._ids.task_id(place(options.queue, options.request_id)), call.type, call.payload)


def batches(calls: Iterable[Prepared[R]], transaction: Transaction | None = None) -> Iterator[list[Prepared[R]]]:
    """The calls in lists of at most `MAX_BATCH`, taken from the iterable only as they are needed."""
    iterator = iter(calls)
    while batch := list(itertools.islice(iterator, MAX_BATCH)):
        for each in batch:
            if not isinstance(each, Prepared):
                raise BadOption(f"enqueue_many takes prepared calls, as in resize.prepare('cat.jpg'), not {each!r}")
            if each.options.transaction is not transaction:
                raise BadOption("enqueue_many takes calls of one transaction, or of none; call it once for each")
        yield batch


def _transaction_of(calls: Iterable[Prepared[R]]) -> tuple[Transaction | None, Iterable[Prepared[R]]]:
    """The transaction of the first of the calls, and all of them again."""
    iterator = iter(calls)
    for first in iterator:
        transaction = first.options.transaction if isinstance(first, Prepared) else None
        return transaction, itertools.chain((first,), iterator)
    return None, ()


def _refuse_conflicts(answers: Sequence[Enqueued]) -> None:
    for answer in answers:
        if answer.conflict is not None:
            others = " (the others of this call are recorded)" if len(answers) > 1 else ""
            raise RequestConflict(f"{answer.conflict}: task {answer.task_id}; use another request_id{others}")
