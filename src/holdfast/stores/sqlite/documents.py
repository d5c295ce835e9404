"""Documents: replaced by whoever has read the last version."""

from __future__ import annotations

from holdfast.stores.contract import Document
from holdfast.stores.sqlite.transaction import Transaction


def all_of(transaction: Transaction, kind: str) -> list[Document]:
    """All documents of a kind, by name."""
    return [Document(*row) for row in transaction.rows("documents", (kind,))]


def get(transaction: Transaction, kind: str, name: str) -> Document | None:
    """One document."""
    row = transaction.row("document", (kind, name))
    return Document(*row) if row else None


def put(transaction: Transaction, kind: str, name: str, value: bytes | None, expected: int) -> bool:
    """Replaces or removes a document if it still has the expected version."""
    current = get(transaction, kind, name)
    if (current.version if current else 0) != expected:
        # The same call was made before, or it is not so any more.
        done = None if value is None else Document(kind, name, value, expected + 1)
        return current == done
    if value is None:
        transaction.run("drop_document", (kind, name))
    else:
        bindings = {"kind": kind, "name": name, "version": expected + 1, "value": value}
        transaction.run("put_document", bindings)
    return True
