"""Enqueues prepared calls: in the caller's thread where the store can, else on the app's event loop."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from holdfast.clock import SystemClock
from holdfast.core.ids import IdSource
from holdfast.core.task import Enqueued, NewTask, Task
from holdfast.errors import BadOption, RequestConflict, UsageError
from holdfast.observe.tracing import carrier, sending
from holdfast.producer.handle import TaskHandle
from holdfast.producer.options import Options, changed
from holdfast.producer.portal import StoreLink, SubmittedCall, finished
from holdfast.runtime.interrupts import shielded

if TYPE_CHECKING:
    from holdfast.security.crypto import PayloadCrypto
    from holdfast.security.keys import Keys
    from holdfast.stores.capabilities import Transaction
    from holdfast.stores.contract import Placement, Store

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Prepared(Generic[R_co]):
    """One call, checked and encoded, not yet enqueued; `enqueue_many` takes many of them.

    It stands for one task: enqueued a second time, it gives the handle of the same task. Use it in one thread.
    """

    __slots__ = ("decode", "id", "options", "payload", "recorder", "type")

    def __init__(
        self,
        type_name: str,
        options: Options,
        payload: bytes,
        decode: Callable[[bytes], R_co],
        recorder: Recorder | None = None,
    ) -> None:
        self.type = type_name
        self.options = options
        self.payload = payload
        self.decode = decode
        #: The recorder of its app; None for a call that no app has declared.
        self.recorder = recorder
        #: None until it is asked for or enqueued: `task_id` allocates it.
        self.id: str | None = None

    @property
    def task_id(self) -> str:
        """The id that the task gets, known before it is enqueued; a `request_id` that is known gives another task."""
        if self.id is None:
            self.id = self._require_recorder().new_id(self.options)
        return self.id

    @property
    def queue(self) -> str:
        """The queue that the task will wait in."""
        return self.options.queue

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the task will carry; change them with `add_headers`."""
        return MappingProxyType(self.options.headers)

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Adds headers to the task, which replace those of the same names; at most 100, of 8 KiB together."""
        if not isinstance(headers, Mapping):
            raise BadOption(f"add_headers takes a mapping, as in add_headers({{'tenant': 'acme'}}), not {headers!r}")
        self.options = changed(self.options, headers={**self.options.headers, **headers})

    def enqueue(self) -> TaskHandle[R_co]:
        """Enqueues it; the task is durable when this returns, or with the commit of the transaction of its options."""
        return self._require_recorder().record_one(self)

    async def aenqueue(self) -> TaskHandle[R_co]:
        """As `enqueue`, for async callers."""
        return await self._require_recorder().arecord_one(self)

    def _require_recorder(self) -> Recorder:
        if self.recorder is None:
            raise UsageError(f"this call of {self.type} belongs to no app: make it with prepare() of a task type")
        return self.recorder

    def __repr__(self) -> str:
        return f"Prepared({self.type!r}, {self.payload!r})"


#: A hook of the app, called before every enqueue.
Outgoing = Callable[[Prepared[Any]], object]


class Eager(Protocol):
    """Runs tasks as soon as they are enqueued, before `enqueue` returns: for tests."""

    def run(self, task_ids: Sequence[str]) -> None:
        """Runs these tasks to their end."""
        ...

    async def arun(self, task_ids: Sequence[str]) -> None:
        """As `run`, for async callers."""
        ...


class Recorder:
    """Records prepared calls as tasks."""

    def __init__(self, link: StoreLink, ids: IdSource) -> None:
        self.link = link
        self._ids = ids
        #: Called with each call before it is enqueued, in the thread and context of the caller.
        self.outgoing: tuple[Outgoing, ...] = ()
        #: Those of its app, by name.
        self.task_types: Mapping[str, Any] = {}
        #: Set by tests only.
        self.eager: Eager | None = None
        #: The store that was asked, and its answer, which holds for as long as that store is open.
        self._placement: tuple[Store | None, Placement | None] = None, None

    async def arecord_one(self, call: Prepared[R]) -> TaskHandle[R]:
        """Durable when it returns, or with the commit of the transaction that it is recorded in."""
        if self.outgoing:
            await self._place()  # known before the hooks ask for an id
            self._send_off(call)
        with sending(call.options.queue, call.type) as span:
            if call.options.transaction is not None:
                (handle,) = await self._arecord_within(call.options.transaction, [call])
            else:
                batch = [call]
                (handle,) = await self._record(batch, self._new_tasks(batch, await self._place()))
            span.recorded([handle])
        if self.eager is not None:
            await self.eager.arun([handle.task_id])
        return handle

    def record_one(self, call: Prepared[R]) -> TaskHandle[R]:
        """As `arecord_one`, for sync callers: in this very thread if the store can, else in the link's event loop."""
        if self.outgoing:
            self._send_off(call)
        with sending(call.options.queue, call.type) as span:
            if call.options.transaction is not None:
                (handle,) = self._record_within(call.options.transaction, [call])
            else:
                handle = self._record_now(call)
            span.recorded([handle])
        if self.eager is not None:
            self.eager.run([handle.task_id])
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
        if self.eager is not None:
            await self.eager.arun([handle.task_id for handle in handles])
        return handles

    async def _arecord_many(self, calls: Iterable[Prepared[R]]) -> list[TaskHandle[R]]:
        place = await self._place()
        handles: list[TaskHandle[R]] = []
        import asyncio

        under_way: list[asyncio.Task[list[TaskHandle[R]]]] = []  # one at most
        try:
            for batch in self._batches(calls):
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
            enqueue_now = store.capabilities.enqueue_now
            answers = None if enqueue_now is None else enqueue_now(tasks)
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
        if self.eager is not None:
            self.eager.run([handle.task_id for handle in handles])
        return handles

    def _record_many(self, calls: Iterable[Prepared[R]]) -> list[TaskHandle[R]]:
        place = self.link.run(self._place())
        handles: list[TaskHandle[R]] = []
        under_way: list[SubmittedCall[Iterable[TaskHandle[R]]]] = []  # one at most
        try:
            for batch in self._batches(calls):
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
        from holdfast.stores.capabilities import within

        store = self.link.store()
        joined = within(store.capabilities, store.url)
        place = self._known_place(store) or self.link.run(self._place())
        handles: list[TaskHandle[R]] = []
        for batch in self._batches(calls, transaction):
            answers: Sequence[Enqueued] = joined.enqueue(transaction, self._new_tasks(batch, place), self.link)
            if any(answer.conflict is not None for answer in answers):
                answers = self.link.run(self._without_false_conflicts(batch, answers))
            handles += self._handles(batch, answers)
        return handles

    async def _arecord_within(self, transaction: Transaction, calls: Iterable[Prepared[R]]) -> list[TaskHandle[R]]:
        from holdfast.stores.capabilities import within

        store = self.link.store()
        joined, place = within(store.capabilities, store.url), await self._place()
        handles: list[TaskHandle[R]] = []
        for batch in self._batches(calls, transaction):
            answers = await joined.aenqueue(transaction, self._new_tasks(batch, place), self.link)
            handles += self._handles(batch, await self._without_false_conflicts(batch, answers))
        return handles

    async def _record(self, batch: Sequence[Prepared[R]], tasks: Sequence[NewTask]) -> list[TaskHandle[R]]:
        answers = await self.link.store().enqueue(tasks)
        return self._handles(batch, await self._without_false_conflicts(batch, answers))

    async def _without_false_conflicts(
        self, batch: Sequence[Prepared[Any]], answers: Sequence[Enqueued]
    ) -> Sequence[Enqueued]:
        """The answers; with keys that change, the repeat of a request has other bytes and is the same all the same."""
        doubtful = [n for n, answer in enumerate(answers) if answer.conflict is not None and batch[n].options.crypto]
        if not doubtful:
            return answers
        ids = [answers[n].task_id for n in doubtful]
        known = dict(zip(doubtful, await self.link.store().get(ids), strict=True))
        return [
            Enqueued(answer.task_id, created=False) if _is_repeat(batch[n], known.get(n)) else answer
            for n, answer in enumerate(answers)
        ]

    def _batches(
        self, calls: Iterable[Prepared[R]], transaction: Transaction | None = None
    ) -> Iterator[list[Prepared[R]]]:
        for batch in batches(calls, transaction):
            if self.outgoing:
                for call in batch:
                    self._send_off(call)
            yield batch

    def _send_off(self, call: Prepared[Any]) -> None:
        for hook in self.outgoing:
            hook(call)

    def new_id(self, options: Options) -> str:
        """An id for a call with these options; asks the store once where its tasks go."""
        place = self._known_place(self.link.store()) or self.link.run(self._place())
        return self._ids.task_id(place(options.queue, options.request_id))

    async def _place(self) -> Placement:
        store = self.link.store()
        place = self._known_place(store)
        if place is None:
            place = await store.placement()
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
        task_id = call.id
        if task_id is None:
            task_id = call.id = self._ids.task_id(place(options.queue, options.request_id))
        return options.new_task(task_id, call.type, call.payload, carried)


def batches(calls: Iterable[Prepared[R]], transaction: Transaction | None = None) -> Iterator[list[Prepared[R]]]:
    """The calls in lists of at most `MAX_BATCH`, taken from the iterable only as they are needed."""
    from holdfast.stores.contract import MAX_BATCH

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
    crypto, queue = call.options.crypto, call.options.queue
    if task is None or crypto is None or (task.type, task.queue) != (call.type, queue):
        return False
    return crypto.is_same(task, call.payload)


def _refuse_conflicts(answers: Sequence[Enqueued]) -> None:
    for answer in answers:
        if answer.conflict is not None:
            others = " (the others of this call are recorded)" if len(answers) > 1 else ""
            raise RequestConflict(f"{answer.conflict}: task {answer.task_id}; use another request_id{others}")


# -- payload encryption --------------------------------------------------------------------------------------


#: Keys, or `@FILE` with keys in it.
KEYS_VARIABLE: Final = "HOLDFAST_KEYS"


def crypto_of(signing: Keys | None, encryption: Keys | None, max_payload: int) -> PayloadCrypto | None:
    """How an app signs and encrypts; None if it does neither. What it is given outweighs the environment."""
    variable = os.environ.get(KEYS_VARIABLE, "")
    if signing is None and encryption is None and not variable:
        return None
    from holdfast.security.crypto import PayloadCrypto
    from holdfast.security.keys import Keys, parse_keys

    for option, keys in (("signing", signing), ("encryption", encryption)):
        if keys is not None and not isinstance(keys, Keys):
            raise BadOption(f"{option}: give Keys({{'2026-11': key}}), where a key has 32 bytes")
    found = parse_keys(_text(variable))
    signing, encryption = signing or found.get("sign"), encryption or found.get("encrypt")
    if signing is None and encryption is None:
        return None
    return PayloadCrypto(signing, encryption, max_payload, os.urandom, SystemClock().now_ms)


def _text(variable: str) -> str:
    if not variable.startswith("@"):
        return variable
    from pathlib import Path

    try:
        return Path(variable[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"{KEYS_VARIABLE}: cannot read {variable[1:]}: {type(error).__name__}") from None
