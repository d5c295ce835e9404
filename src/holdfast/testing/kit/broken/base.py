"""What all broken stores share."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.task import Task
from holdfast.stores.contract import MAX_BATCH, DocumentPage, DocumentResult, DocumentWrite, Reserve, Reserved, Store
from holdfast.stores.decorate import PassingStore
from holdfast.testing.clock import SteppedClock


class BrokenStore(PassingStore):
    """A good store with one bug; the docstring of each class names it."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner)
        self.clock = clock

    async def task(self, task_id: str) -> Task | None:
        """What the good store knows of a task."""
        [task] = await self.inner.get([task_id])
        return task


class TranslatingStore(BrokenStore):
    """A good store that is sent other changes than the caller sent, or whose verdicts are twisted."""

    async def translated(self, change: Change) -> Change:
        """The change as the good store gets it."""
        return change

    def twisted(self, change: Change, verdict: Verdict) -> Verdict:
        """The verdict as the caller gets it."""
        del change
        return verdict

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """One by one, with the bug."""
        return [await self._apply_one(change) for change in changes]

    async def _apply_one(self, change: Change) -> Verdict:
        [verdict] = await self.inner.apply([await self.translated(change)])
        return self.twisted(change, verdict)

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Settlements take the same way as in `apply`."""
        verdicts = await self.apply(settle)
        answer = await self.inner.reserve(request)
        return msgspec.structs.replace(answer, verdicts=verdicts)


class DocumentBug(BrokenStore):
    """A good store whose documents of some kinds are written or read wrongly."""

    #: The kinds with the bug.
    kinds: frozenset[str] = frozenset()

    async def put(self, write: DocumentWrite) -> DocumentResult:
        """Wrong for the kinds with the bug."""
        return await (self.written(write) if write.kind in self.kinds else self.inner.put(write))

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """A write of such a document."""
        return await self.inner.put(write)

    async def documents(
        self,
        kind: str,
        *,
        names: Sequence[str] | None = None,
        due_within_ms: int | None = None,
        cursor: str | None = None,
        limit: int = MAX_BATCH,
    ) -> DocumentPage:
        """Wrong for the kinds with the bug."""
        if kind in self.kinds and due_within_ms is not None:
            return await self.due(kind, due_within_ms, limit)
        page = await self.inner.documents(kind, names=names, due_within_ms=due_within_ms, cursor=cursor, limit=limit)
        return self.listed(page, names) if kind in self.kinds else page

    async def due(self, kind: str, due_within_ms: int, limit: int) -> DocumentPage:
        """Such documents by their due time."""
        return await self.inner.documents(kind, due_within_ms=due_within_ms, limit=limit)

    def listed(self, page: DocumentPage, names: Sequence[str] | None) -> DocumentPage:
        """A page of such documents."""
        del names
        return page
