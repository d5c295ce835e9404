"""The kit with signing and encryption on: a store treats encrypted bytes and headers like any others.

Every eighth case of the kit; `make test-all` runs all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.lifecycle import Change, Event, Verdict
from holdfast.core.payload import is_encrypted
from holdfast.core.task import Claimed, Enqueued, NewTask, State, Task
from holdfast.security.crypto import PayloadCrypto
from holdfast.security.keys import parse_keys
from holdfast.stores import documents
from holdfast.stores.contract import (
    MAX_BATCH,
    Document,
    DocumentPage,
    DocumentResult,
    DocumentWrite,
    Page,
    Query,
    Reserve,
    Reserved,
    Store,
)
from holdfast.stores.decorate import PassingStore
from holdfast.stores.documents import Discard
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.conformance import CASES, Case, run_case
from holdfast.testing.kit.harness import DecoratedHarness
from tests.stores.harnesses import HARNESSES
from tests.stores.sampling import on_each
from tests.support import KEYS

_MAX_BYTES: Final = 64 * 1024 * 1024
_SEALED: Final = frozenset({documents.MEMO, documents.SCHEDULE})
_OURS: Final = frozenset({"holdfast-signature", "holdfast-timing"})


class EncryptedStore(PassingStore):
    """Another store that has signed and encrypted tasks, results, schedules and memos only; what it gives is opened.

    As an app does it, but that equal arguments of the same task become equal bytes: the kit sends a task again as it
    was, where a producer sends the very bytes again.
    """

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner)
        keys = parse_keys(KEYS)
        self._crypto = PayloadCrypto(keys["sign"], keys["encrypt"], _MAX_BYTES, bytes, clock.now_ms)

    # -- what is given to it --------------------------------------------------------------------------------

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        return await self.inner.enqueue([self._crypto.task(task) for task in tasks], map_version=map_version)

    async def put(self, write: DocumentWrite) -> DocumentResult:
        encrypted = replace(write, tasks=[self._crypto.task(task) for task in write.tasks])
        if write.value is not None and write.kind in _SEALED:
            encrypted = replace(encrypted, value=self._encrypted_value(write.kind, write.name, write.value))
        result = await self.inner.put(encrypted)
        return replace(result, document=result.document and self._document(result.document))

    def _encrypted_value(self, kind: str, name: str, value: bytes) -> bytes:
        if kind == documents.MEMO:
            return self._crypto.kept(name, value)
        schedule = documents.schedule_of(Document(kind, name, value, 1))
        call = self._crypto.call(schedule.call, schedule.name, schedule.timing)
        return msgspec.json.encode(replace(schedule, call=call))

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        # The sizes of the kit's cases are those of plain arguments.
        larger = replace(request, max_bytes=request.max_bytes * 3 // 2)
        reserved = await self.inner.reserve(larger, await self._encrypted(settle))
        return replace(reserved, tasks=[self._claimed(task) for task in reserved.tasks])

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        return await self.inner.apply(await self._encrypted(changes))

    async def _encrypted(self, changes: Sequence[Change]) -> list[Change]:
        """With results as a worker gives them, which knows the type and the queue of its task."""
        acks = [change.task_id for change in changes if change.event is Event.ACK and change.result is not None]
        known = {task.task_id: task for task in await self.inner.get(acks) if task is not None} if acks else {}
        return [
            replace(change, result=self._crypto.result(known[change.task_id], change.result))
            if change.result is not None and change.task_id in known
            else change
            for change in changes
        ]

    # -- what it gives --------------------------------------------------------------------------------------

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        return [None if task is None else self._task(task) for task in await self.inner.get(task_ids)]

    async def find(self, query: Query) -> Page:
        page = await self.inner.find(query)
        return replace(page, tasks=[self._task(task) for task in page.tasks])

    async def documents(
        self,
        kind: str,
        *,
        names: Sequence[str] | None = None,
        due_within_ms: int | None = None,
        cursor: str | None = None,
        limit: int = MAX_BATCH,
    ) -> DocumentPage:
        page = await self.inner.documents(kind, names=names, due_within_ms=due_within_ms, cursor=cursor, limit=limit)
        return replace(page, documents=[self._document(document) for document in page.documents])

    def _document(self, document: Document) -> Document:
        if document.kind == documents.MEMO:
            return replace(document, value=self._crypto.opened_kept(document.name, document.value))
        if document.kind == documents.SCHEDULE:
            schedule = documents.schedule_of(document)
            opened = replace(schedule, call=self._crypto.opened_call(schedule))
            return replace(document, value=msgspec.json.encode(opened))
        if document.kind == documents.DISCARD:
            discard = documents.discard_of(document)
            opened_discard = replace(discard, payload=self._discarded(discard))
            return replace(document, value=documents.discard_document(opened_discard).value)
        return document

    def _claimed(self, task: Claimed) -> Claimed:
        assert is_encrypted(task.payload)
        return replace(task, payload=self._crypto.opened(task), headers=_others(task.headers))

    def _task(self, task: Task) -> Task:
        result = None if task.result is None else self._crypto.opened_result(task, task.result)
        payload = self._crypto.opened_arguments(task)
        return replace(task, payload=payload, result=result, headers=_others(task.headers))

    def _discarded(self, discard: Discard) -> bytes:
        task = Task(
            task_id=discard.task_id,
            type=discard.type,
            queue=discard.queue,
            state=State.DEAD_LETTERED,
            priority=0,
            attempt=1,
            deliveries=1,
            created_at_ms=0,
            run_at_ms=0,
            payload=discard.payload,
        )
        return self._crypto.opened_arguments(task)


def _others(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in _OURS}


@pytest.mark.parametrize(("harness", "case"), on_each(["sqlite-file", "redis", "postgres"], CASES))
def test_promise_is_kept_with_signing_and_encryption(harness: str, case: Case, tmp_path: Path) -> None:
    asyncio.run(run_case(case, lambda: DecoratedHarness(HARNESSES[harness](tmp_path), EncryptedStore)))
