"""Bugs of memos."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.stores.contract import Document, DocumentPage, DocumentResult, DocumentWrite, Retention, Store
from holdfast.stores.documents import MEMO
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.broken.base import DocumentBug


class _MemoBug(DocumentBug):
    """A good store with a bug in its memos."""

    kinds = frozenset({MEMO})


class MemoOverwrites(_MemoBug):
    """The last value under a key wins: a step that was done twice changes its result."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """In place of what is there."""
        return await self.inner.put(replace(write, expected=None))


class MemoShowsOwnValue(_MemoBug):
    """The second caller is told that its own value was stored."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """As if it were the first."""
        result = await self.inner.put(write)
        if result.document is None or write.value is None:
            return result
        return replace(result, document=replace(result.document, value=write.value))


class MemoIgnoresTheClaim(_MemoBug):
    """A worker that has lost its claim can store a value."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """Without a look at the claim."""
        return await self.inner.put(replace(write, hold=None))


class RepeatKeepsLonger(_MemoBug):
    """Every repeat gives the value its whole time again."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """From now on."""
        result = await self.inner.put(write)
        if result.document is not None and result.reason in ("", "version"):
            await self.inner.put(replace(write, value=result.document.value, expected=result.document.version))
        return result


class MemoUntilPruned(_MemoBug):
    """A value whose time is over is given out until it happens to be pruned."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._seen: dict[str, Document] = {}

    def listed(self, page: DocumentPage, names: Sequence[str] | None) -> DocumentPage:
        """Without a look at the time."""
        self._seen.update({document.name: document for document in page.documents})
        wanted = self._seen if names is None else [name for name in names if name in self._seen]
        return replace(page, documents=[self._seen[name] for name in wanted])

    async def prune(self, epoch: int, retention: Retention, limit: int = 1_000) -> int:
        """Now they are gone."""
        self._seen.clear()
        return await self.inner.prune(epoch, retention, limit)


class MemoForEver(_MemoBug):
    """Values whose time is over are not deleted."""

    async def written(self, write: DocumentWrite) -> DocumentResult:
        """For a very long time."""
        return await self.inner.put(replace(write, ttl_ms=(write.ttl_ms or 0) + (1 << 40)))
