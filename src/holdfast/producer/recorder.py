"""Hands tasks to the store: in batches, under ids made here, so that a lost reply never makes a second task."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from holdfast.core.ids import IdSource
from holdfast.core.task import Enqueued, NewTask, Task
from holdfast.errors import BadOption, RequestConflict
from holdfast.observe.tracing import carrier, sending
from holdfast.producer.handle import TaskHandle
from holdfast.producer.link import Link
from holdfast.producer.options import Options
from holdfast.producer.portal import finished
from holdfast.shield import shielded
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
        with sending(call.options.queue, call.type) as span:
            if call.options.transaction is not None:
                (handle,) = await self._arecord_within(call.options.transaction, [call])
            else:
                batch = [call]
                (handle,) = await self._record(batch, self._new_tasks(batch, await self._place()))
            span.recorded([handle])
            return handle

    def record_one(self, call: Prepared[R]) -> TaskHandle[R]:
        """As `arecord_one`, for sync callers: in this very thread if the store can, else in the link's event loop."""
        with sending(call.options.queue, call.type) as span:
            if call.options.transaction is not None:
                (handle,) = self._record_within(call.options.transaction, [call])
            else:
                handle = self._record_now(call)
            span.recorded([handle])
            return handle

    async def aenqueue_many(self, calls: Iterable[Prepared[R]]) -> list[TaskHandle[R]]:
        """Records any number of calls, batch by batch: one is on its way while the next is prepared."""
        options, calls = _options_of(calls)
        with sending(options.queue) as span:
            if options.transaction is not None:
                handles = await self._arecord_within(options.transaction, span.of(calls))
            else:
                handles = await self._arecord_many(span.of(calls))
            span.recorded(handles)
            return handles

    async def _arecord_many(self, calls: Iterable[Prepared[R]]) -> list[TaskHandle[R]]:
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

    def _record_now(self, call: Prepared[R]) -> TaskHandle[R]:
        with shielded():
            batch, store = [call], self.link.store()
            tasks = self._new_tasks(batch, self._known_place(store) or self.link.run(self._place()))
            answers = store.enqueue_now(tasks)
            if answers is not None and answers[0].conflict is not None:
                answers = None  # looked at more closely by the long way
            (handle,) = self.link.run(self._record(batch, tasks)) if answers is None else self._handles(batch, answers)
            return handle

    def enqueue_many(self, calls: Iterable[Prepared[R]]) -> list[TaskHandle[R]]:
        """As `aenqueue_many`, for sync callers; `calls` is consumed in the caller's thread."""
        options, calls = _options_of(calls)
        with sending(options.queue) as span:
            if options.transaction is not None:
                handles = self._record_within(options.transaction, span.of(calls))
            else:
                handles = self._record_many(span.of(calls))
            span.recorded(handles)
            return handles

    def _record_many(self, calls: Iterable[Prepared[R]]) -> list[TaskHandle[R]]:
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
        answers = await self.link.insist(lambda store: store.enqueue(tasks))
        return self._handles(batch, await self._without_false_conflicts(batch, answers))

    async def _without_false_conflicts(
        self, batch: Sequence[Prepared[Any]], answers: Sequence[Enqueued]
    ) -> Sequence[Enqueued]:
        """The answers; with keys that change, the repeat of a request has other bytes and is the same all the same."""
        doubtful = [n for n, answer in enumerate(answers) if answer.conflict is not None and batch[n].options.sealing]
        if not doubtful:
            return answers
        ids = [answers[n].task_id for n in doubtful]
        known = dict(zip(doubtful, await self.link.insist(lambda store: store.get(ids)), strict=True))
        return [
            Enqueued(answer.task_id, created=False) if _is_repeat(batch[n], known.get(n)) else answer
            for n, answer in enumerate(answers)
        ]

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
        carried = carrier()
        return [self._new_task(call, place, carried) for call in batch]

    def _new_task(self, call: Prepared[Any], place: Placement, carried: Mapping[str, str]) -> NewTask:
        options = call.options
        task_id = self._ids.task_id(place(options.queue, options.request_id))
        return options.new_task(task_id, call.type, call.payload, carried)


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


def _options_of(calls: Iterable[Prepared[R]]) -> tuple[Options, Iterable[Prepared[R]]]:
    """The options of the first of the calls, and all of them again."""
    iterator = iter(calls)
    for first in iterator:
        options = first.options if isinstance(first, Prepared) else Options()
        return options, itertools.chain((first,), iterator)
    return Options(), ()


def _is_repeat(call: Prepared[Any], task: Task | None) -> bool:
    sealing, queue = call.options.sealing, call.options.queue
    if task is None or sealing is None or (task.type, task.queue) != (call.type, queue):
        return False
    return sealing.is_same(task, call.payload)


def _refuse_conflicts(answers: Sequence[Enqueued]) -> None:
    for answer in answers:
        if answer.conflict is not None:
            others = " (the others of this call are recorded)" if len(answers) > 1 else ""
            raise RequestConflict(f"{answer.conflict}: task {answer.task_id}; use another request_id{others}")
