"""Values under keys: the first one stays for its time."""

from __future__ import annotations

from holdfast.core.task import Hold
from holdfast.stores.contract import Kept
from holdfast.stores.sqlite.transaction import Transaction


def keep(transaction: Transaction, key: str, value: bytes, ttl_ms: int, hold: Hold | None) -> Kept:
    """Keeps a value if the claim is current and the key is free; tells what stands there."""
    reason = "" if hold is None else _objection(transaction, hold)
    if not reason:
        transaction.run("keep", {"key": key, "value": value, "ttl_ms": ttl_ms, "now": transaction.now_ms})
    return Kept(kept(transaction, key), reason)


def kept(transaction: Transaction, key: str) -> bytes | None:
    """What is kept under this key."""
    value: bytes | None = transaction.value("kept", {"key": key, "now": transaction.now_ms})
    return value


def prune(transaction: Transaction, limit: int) -> int:
    """Deletes what is not kept any longer; how many."""
    transaction.run("prune_kept", {"now": transaction.now_ms, "limit": limit})
    return transaction.connection.changes()


def _objection(transaction: Transaction, hold: Hold) -> str:
    row = transaction.row("holder", {"task_id": hold.task_id, "token": hold.token})
    if not row:
        return "unknown"
    return "" if row[0] else "stale_claim"
