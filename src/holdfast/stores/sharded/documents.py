"""Documents over many partitions: all of them lie in partition 0, as the list of workers does."""

from __future__ import annotations

from holdfast.stores.contract import Document
from holdfast.stores.sharded.routing import Router


class Documents:
    """The part of the store that keeps what is not about one task."""

    _router: Router

    async def documents(self, kind: str) -> list[Document]:
        """All documents of a kind, by name."""
        await self._router.map()
        return await self._router.stores[0].documents(kind)

    async def document(self, kind: str, name: str) -> Document | None:
        """One document."""
        await self._router.map()
        return await self._router.stores[0].document(kind, name)

    async def put_document(self, kind: str, name: str, value: bytes | None, expected: int) -> bool:
        """Replaces or removes a document."""
        await self._router.map()
        return await self._router.stores[0].put_document(kind, name, value, expected)
