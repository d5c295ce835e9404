"""Bugs of documents."""

from __future__ import annotations

from holdfast.testing.broken.base import BrokenStore


class LastDocumentWins(BrokenStore):
    """Whoever writes last wins, whatever it has read: a revoked token comes back."""

    async def put_document(self, kind: str, name: str, value: bytes | None, expected: int) -> bool:
        """In place of whatever is there."""
        current = await self.inner.document(kind, name)
        del expected
        return await self.inner.put_document(kind, name, value, current.version if current else 0)


class DocumentVersionNotRepeatable(BrokenStore):
    """The same put again is refused: whoever lost the reply believes that another one was faster."""

    async def put_document(self, kind: str, name: str, value: bytes | None, expected: int) -> bool:
        """No repeats."""
        current = await self.inner.document(kind, name)
        if (current.version if current else 0) != expected:
            return False
        return await self.inner.put_document(kind, name, value, expected)


class EqualDocumentIsARepeat(BrokenStore):
    """A put whose value stands there already is taken for its own repeat, whoever put it."""

    async def put_document(self, kind: str, name: str, value: bytes | None, expected: int) -> bool:
        """By the value alone."""
        current = await self.inner.document(kind, name)
        equal = current is not None and current.value == value
        return equal or await self.inner.put_document(kind, name, value, expected)


class KindsShareNames(BrokenStore):
    """A name is one for all kinds."""

    async def put_document(self, kind: str, name: str, value: bytes | None, expected: int) -> bool:
        """Removes every namesake."""
        done = await self.inner.put_document(kind, name, value, expected)
        for other in {"token", "setting"} - {kind}:
            namesake = await self.inner.document(other, name)
            if done and value is None and namesake is not None:
                await self.inner.put_document(other, name, None, namesake.version)
        return done
