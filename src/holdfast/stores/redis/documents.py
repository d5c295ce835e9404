"""Documents: replaced by whoever has read the last version."""

from __future__ import annotations

from holdfast.errors import DurabilityUnknown
from holdfast.stores.contract import Document
from holdfast.stores.redis.calling import Calling


class Documents(Calling):
    """The part of the store that keeps what is not about one task."""

    async def documents(self, kind: str) -> list[Document]:
        """All documents of a kind, by name."""
        reply = await self._call("documents", kind)
        names = [name.decode() for name in reply[::2]]
        return [_document(kind, name, text) for name, text in sorted(zip(names, reply[1::2], strict=True))]

    async def document(self, kind: str, name: str) -> Document | None:
        """One document."""
        text = await self._call("document", kind, name)
        return _document(kind, name, text) if text else None

    async def put_document(self, kind: str, name: str, value: bytes | None, expected: int) -> bool:
        """Replaces or removes a document; as safe as the durability level says when it returns."""
        new = () if value is None else (value,)
        try:
            return bool(await self._call("put_document", kind, name, expected, *new, safe=True))
        except DurabilityUnknown as error:
            raise DurabilityUnknown(f"{kind} {name!r}: {error}") from error


def _document(kind: str, name: str, text: bytes) -> Document:
    version, _, value = text.partition(b":")
    return Document(kind, name, value, int(version))
