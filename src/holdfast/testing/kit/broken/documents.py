"""Bugs of documents of any kind."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.stores import documents
from holdfast.stores.contract import MAX_BATCH, Document, DocumentPage, DocumentResult, DocumentWrite, Store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.broken.base import DocumentBug


class _PlainBug(DocumentBug):
    """A good store with a bug in documents that have no meaning for it."""

    kinds = frozenset({"token", "setting"})

    async def current(self, write: DocumentWrite) -> Document | None:
        """The document that is to be replaced."""
        return await documents.one(self.inner, write.kind, write.name)


class LastDocumentWins(_PlainBug):
    """The last writer wins, whatever it has read: a revoked token comes back."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """In place of what is there."""
        return await self.inner.put(replace(write, expected=None))


class DocumentVersionNotRepeatable(_PlainBug):
    """The same put again is refused: a caller that lost the reply believes that another one was faster."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """No repeats."""
        current = await self.current(write)
        if write.expected not in (None, current.version if current else 0):
            return DocumentResult(False, current, "version")
        return await self.inner.put(write)


class EqualDocumentIsARepeat(_PlainBug):
    """A put whose value is there already is taken for its own repeat, whichever call put it there."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """By the value alone."""
        current = await self.current(write)
        if current is not None and current.value == write.value:
            return DocumentResult(True, current)
        return await self.inner.put(write)


class KindsShareNames(_PlainBug):
    """A name is one for all kinds."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """Removes every namesake."""
        result = await self.inner.put(write)
        for other in self.kinds - {write.kind}:
            if result.applied and write.value is None:
                await self.inner.put(DocumentWrite(kind=other, name=write.name, value=None))
        return result


class RefusalWithoutTheDocument(_PlainBug):
    """A refused caller is not told what is there."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """Only the reason."""
        result = await self.inner.put(write)
        return result if result.applied else replace(result, document=None)


class ExplicitVersionIgnored(_PlainBug):
    """Every version is one more than the last, whatever the write says."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """Counted."""
        return await self.inner.put(replace(write, version=0))


class ReplacingFindsNothing(_PlainBug):
    """A write that is to replace what is there creates nothing."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """Only where there is something."""
        if write.expected is None and await self.current(write) is None:
            return DocumentResult(False, None, "version")
        return await self.inner.put(write)


class RepeatEnqueuesTwice(_PlainBug):
    """The same write again enqueues its tasks again, if they have come and gone meanwhile."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """With every success."""
        result = await self.inner.put(replace(write, tasks=()))
        if result.applied:
            await self.inner.enqueue(write.tasks, map_version=write.map_version)
        return result


class RefusedWriteEnqueues(_PlainBug):
    """A write that is refused enqueues its tasks all the same."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """Tasks first."""
        await self.inner.enqueue(write.tasks, map_version=write.map_version)
        return await self.inner.put(replace(write, tasks=()))


class EpochOfADocumentIgnored(_PlainBug):
    """A process that is not the leader any more writes what only the leader may."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """By any process."""
        return await self.inner.put(replace(write, epoch=None))


class HoldOfADocumentIgnored(_PlainBug):
    """A worker that has lost its claim writes what only its holder may."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """By any worker."""
        return await self.inner.put(replace(write, hold=None))


class TimeToLiveIgnored(_PlainBug):
    """Documents stay for ever."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """Without an end."""
        return await self.inner.put(replace(write, ttl_ms=None))


class ExpiredStillCounts(_PlainBug):
    """A document that has expired is in the way of a new one."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._last: dict[str, Document] = {}

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """By what was written last."""
        last = self._last.get(write.name)
        if last is not None and write.expected == 0 and (last.expires_at_ms or 0) <= self.clock.now_ms():
            return DocumentResult(False, last, "version")
        result = await self.inner.put(write)
        if result.document is not None and result.document.expires_at_ms is not None:
            self._last[write.name] = result.document
        return result


class DueIgnored(_PlainBug):
    """Documents are due at any time."""

    async def due(self, kind: str, due_within_ms: int, limit: int) -> DocumentPage:
        """All of them."""
        del due_within_ms
        return await self.inner.documents(kind, limit=limit)


class DueIsForgotten(_PlainBug):
    """Documents are stored without the time when they are due."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """Never due."""
        return await self.inner.put(replace(write, due_at_ms=None))


class _ReadingBug(DocumentBug):
    """A good store that is asked for other documents than the caller asked for."""

    async def documents(
        self,
        kind: str,
        *,
        names: Sequence[str] | None = None,
        due_within_ms: int | None = None,
        cursor: str | None = None,
        limit: int = MAX_BATCH,
    ) -> DocumentPage:
        """With the bug, unless it goes by the time."""
        if due_within_ms is not None:
            return await self.inner.documents(kind, due_within_ms=due_within_ms, limit=limit)
        return await self.asked(kind, names, cursor, limit)

    async def asked(self, kind: str, names: Sequence[str] | None, cursor: str | None, limit: int) -> DocumentPage:
        """A page by names."""
        return await self.inner.documents(kind, names=names, cursor=cursor, limit=limit)


class NamesIgnored(_ReadingBug):
    """A caller that asks for some documents gets all of the kind."""

    async def asked(self, kind: str, names: Sequence[str] | None, cursor: str | None, limit: int) -> DocumentPage:
        """By kind alone."""
        del names
        return await self.inner.documents(kind, cursor=cursor, limit=limit)


class PagesWithoutAnEnd(_ReadingBug):
    """A page has all documents of its kind, however many and however large they are."""

    async def asked(self, kind: str, names: Sequence[str] | None, cursor: str | None, limit: int) -> DocumentPage:
        """All pages in one."""
        del limit
        page = await self.inner.documents(kind, names=names, cursor=cursor)
        found = list(page.documents)
        while page.cursor is not None:
            page = await self.inner.documents(kind, names=names, cursor=page.cursor)
            found += page.documents
        return replace(page, documents=found)


class CursorIgnored(_ReadingBug):
    """Every page is the first one."""

    async def asked(self, kind: str, names: Sequence[str] | None, cursor: str | None, limit: int) -> DocumentPage:
        """From the start."""
        del cursor
        return await self.inner.documents(kind, names=names, limit=limit)
