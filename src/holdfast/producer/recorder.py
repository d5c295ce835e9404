"""Hands tasks to the store: in batches, under ids made here, so that a lost reply never makes a second task."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from holdfast.core.ids import IdSource
from holdfast.core.task import Enqueued, NewTask
from holdfast.errors import BadOption, RequestConflict
from holdfast.producer.handle import TaskHandle
from holdfast.producer.link import Link
from holdfast.producer.options import Options
from holdfast.stores.contract import MAX_BATCH, Placement

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

    async def arecord(self, batch: Sequence[Prepared[R]]) -> list[TaskHandle[R]]:
        """Durable when it returns; the handles come in the order of the calls. At most `MAX_BATCH` of them."""
        place = await self.link.insist(lambda store: store.placement())
        tasks = [self._new_task(each, place) for each in batch]
        answers = await self.link.insist(lambda store: store.enqueue(tasks))
        _refuse_conflicts(answers)
        link = self.link
        return [TaskHandle(link, answer.task_id, each.decode) for each, answer in zip(batch, answers, strict=True)]

    async def arecord_one(self, call: Prepared[R]) -> TaskHandle[R]:
        """Durable when it returns."""
        (handle,) = await self.arecord([call])
        return handle

    async def aenqueue_many(self, calls: Iterable[Prepared[R]]) -> list[TaskHandle[R]]:
        """Records any number of calls, batch by batch."""
        return [handle for batch in batches(calls) for handle in await self.arecord(batch)]

    def enqueue_many(self, calls: Iterable[Prepared[R]]) -> list[TaskHandle[R]]:
        """Records any number of calls, batch by batch; `calls` is consumed in the caller's thread."""
        return [handle for batch in batches(calls) for handle in self.link.run(self.arecord(batch))]

    def _new_task(self, call: Prepared[Any], place: Placement) -> NewTask:
        options = call.options
        return NewTask(
            task_id=self._ids.task_id(place(options.queue, options.request_id)),
            type=call.type,
            queue=options.queue,
            payload=call.payload,
            headers=options.headers,
            request_id=options.request_id,
            priority=options.priority,
            policy=options.policy,
            delay_ms=options.delay_ms,
            run_at_ms=options.run_at_ms,
        )


def batches(calls: Iterable[Prepared[R]]) -> Iterator[list[Prepared[R]]]:
    """The calls in lists of at most `MAX_BATCH`, taken from the iterable only as they are needed."""
    iterator = iter(calls)
    while batch := list(itertools.islice(iterator, MAX_BATCH)):
        for each in batch:
            if not isinstance(each, Prepared):
                raise BadOption(f"enqueue_many takes prepared calls, as in resize.prepare('cat.jpg'), not {each!r}")
        yield batch


def _refuse_conflicts(answers: Sequence[Enqueued]) -> None:
    for answer in answers:
        if answer.conflict is not None:
            others = " (the others of this call are recorded)" if len(answers) > 1 else ""
            raise RequestConflict(f"{answer.conflict}: task {answer.task_id}; use another request_id{others}")
