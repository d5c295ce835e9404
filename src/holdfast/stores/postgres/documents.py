"""Documents: replaced by whoever has read the last version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.stores.contract import Document
from holdfast.stores.postgres.sending import plain_text
from holdfast.stores.single import SinglePartition

if TYPE_CHECKING:
    from holdfast.stores.postgres.calls import Calls


class Documents(SinglePartition):
    """The part of the store that keeps what is not about one task."""

    _call: Calls

    async def documents(self, kind: str) -> list[Document]:
        """All documents of a kind, by name."""
        return [Document(*row) for row in await self._call("get_documents", plain_text(kind), None)]

    async def document(self, kind: str, name: str) -> Document | None:
        """One document."""
        rows = await self._call("get_documents", plain_text(kind), plain_text(name))
        return Document(*rows[0]) if rows else None

    async def put_document(self, kind: str, name: str, value: bytes | None, expected: int) -> bool:
        """Replaces or removes a document; as safe as the durability level says when it returns."""
        [(done,)] = await self._call("put_document", plain_text(kind), plain_text(name), expected, value, safe=True)
        return bool(done)
