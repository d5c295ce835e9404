"""Reserve: from `ready` to `claimed`, lowest rank first, one holder at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from holdfast.core.task import Claimed, Extension, Hold
from holdfast.stores.contract import Reserve
from holdfast.stores.sqlite.transaction import SQL, Transaction, headers_of, policy_of
from holdfast.stores.sqltext import render

#: SQLite takes 500 parts in one compound query; a queue with more waiting types needs a query of queries.
_MAX_PARTS = 400
_ONE_TYPE = "SELECT rank, seq FROM tasks WHERE state = {ready} AND queue = :queue AND type = :type{n}"


def reserve(transaction: Transaction, request: Reserve) -> list[Claimed]:
    """Claims what is asked for, or finds again what this claim_id holds already."""
    if request.max_tasks <= 0 or not request.shares:
        return []
    if request.fresh or transaction.value("is_claimed", (request.claim_id,)) is None:
        _claim_all(transaction, request)
    return _claimed(transaction, request)


def _claim_all(transaction: Transaction, request: Reserve) -> None:
    paused = {queue for (queue,) in transaction.rows("paused_queues")}
    open_shares = [share for share in request.shares if share.queue not in paused]
    epoch = transaction.epoch()
    left = request.max_tasks
    full: set[str] = set()
    limits = [(share.queue, share.limit) for share in open_shares]
    for queue, limit in [*limits, *((queue, left) for queue, limit in limits if limit < left)]:
        if left <= 0:
            break
        wanted = min(limit, left)
        taken = _claim(transaction, request, queue, wanted, epoch) if wanted > 0 else 0
        left -= taken
        if taken == wanted:
            full.add(queue)
    # Whoever gets all it asked for may leave something behind: then the next worker should have a look.
    if left <= 0:
        transaction.bells.update(queue for queue in full if transaction.value("next_ready_type", (queue, "")))


def _claim(transaction: Transaction, request: Reserve, queue: str, limit: int, epoch: int) -> int:
    types = [name for name in _ready_types(transaction, queue) if request.types is None or name in request.types]
    if not types:
        return 0
    transaction.connection.execute(
        _claim_statement(len(types)),
        {
            "queue": queue,
            "limit": limit,
            "epoch": epoch,
            "claim_id": request.claim_id,
            "worker_id": request.worker_id,
            "now": transaction.now_ms,
            "lease_ms": request.lease_ms,
            **{f"type{n}": name for n, name in enumerate(types)},
        },
    )
    return transaction.connection.changes()


def _ready_types(transaction: Transaction, queue: str) -> Iterator[str]:
    name = transaction.value("next_ready_type", (queue, ""))
    while name is not None:
        yield name
        name = transaction.value("next_ready_type", (queue, name))


@cache
def _claim_statement(types: int) -> str:
    """The claim over this many types: SQLite merges their index ranges and stops at the limit."""
    ranges = [render(_ONE_TYPE, n=str(n)) for n in range(types)]
    while len(ranges) > 1:
        groups = [ranges[n : n + _MAX_PARTS] for n in range(0, len(ranges), _MAX_PARTS)]
        ranges = [f"SELECT rank, seq FROM ({_merged(group)})" for group in groups]  # noqa: S608
    return SQL["claim"].replace("{candidates}", f"SELECT seq FROM ({_merged(ranges)})")  # noqa: S608


def _merged(ranges: Sequence[str]) -> str:
    return f"{' UNION ALL '.join(ranges)} ORDER BY rank, seq LIMIT :limit"


def _claimed(transaction: Transaction, request: Reserve) -> list[Claimed]:
    rows = transaction.rows("claimed_by_id", (request.claim_id,))
    order = {share.queue: position for position, share in enumerate(request.shares)}
    rows.sort(key=lambda row: (order.get(row[3], 0), row[12], row[13]))
    return [_task(row) for row in rows]


def _task(row: Sequence[Any]) -> Claimed:
    task_id, token, task_type, queue, payload, headers, priority, policy, attempt, created_at_ms = row[:10]
    return Claimed(
        task_id,
        token,
        task_type,
        queue,
        payload,
        headers_of(headers),
        priority,
        policy_of(policy),
        attempt,
        created_at_ms,
        row[10],
        row[11],
    )


def extend(transaction: Transaction, holds: Sequence[Hold], lease_ms: int) -> list[Extension]:
    """Renews every claim that is current, and tells of those that are not."""
    return [_extend(transaction, hold, lease_ms) for hold in holds]


def _extend(transaction: Transaction, hold: Hold, lease_ms: int) -> Extension:
    bindings = {
        "task_id": hold.task_id,
        "token": hold.token,
        "progress": hold.progress,
        "now": transaction.now_ms,
        "lease_ms": lease_ms,
    }
    rows = transaction.rows("extend", bindings)
    if rows:
        return Extension(held=True, cancel_requested=bool(rows[0][0]))
    known = transaction.row("standing", (hold.task_id,))
    return Extension(held=False, reason="stale_claim" if known else "unknown")
