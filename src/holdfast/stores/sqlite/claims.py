"""Claims: from `ready` to `claimed`, lowest rank first, one holder at a time; and their leases."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import accumulate, takewhile
from typing import Any, Final

import msgspec

from holdfast.core.lifecycle import Change
from holdfast.core.task import Claimed, Extension, Hold
from holdfast.stores.contract import Reserve
from holdfast.stores.decode import Unreadable, bury_unreadable, headers_of, policy_of
from holdfast.stores.sqlite import settlements
from holdfast.stores.sqlite.transaction import SQL, Transaction
from holdfast.stores.sqltext import render

#: SQLite takes 500 parts in one compound query; a claim over more types needs a query of queries.
_MAX_PARTS = 400
#: Of more types than this, and than tasks asked for, a claim looks only into those whose first tasks come first.
_FEW_TYPES: Final = 100
#: Where a row of `claimed_by_id` has what.
_QUEUE, _RANK, _SEQ, _BYTES = 3, 12, 13, 14
_ONE_TYPE = "SELECT rank, seq FROM tasks WHERE state = {ready} AND queue = :queue AND type = :type{n}"


def reserve(transaction: Transaction, request: Reserve) -> tuple[list[Claimed], bool]:
    """Claims what is asked for, or finds again what this claim_id holds; whether a task did not fit in and stayed."""
    if request.max_tasks <= 0 or not request.shares:
        return [], False
    held = {seq for (seq,) in transaction.rows("held_by_id", (request.claim_id,))}
    if request.fresh or not held:
        _claim_all(transaction, request)
    rows = _claimed_rows(transaction, request)
    left = _without_room(rows, held, request)
    if left:
        transaction.run_many("unclaim", [(row[_SEQ],) for row in left])
        transaction.wakeups.update(row[_QUEUE] for row in left)
        rows = [row for row in rows if row not in left]
    return _tasks(transaction, rows), bool(left)


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
    # A worker that gets all it asked for may leave something behind: then the next one should have a look.
    if left <= 0:
        transaction.wakeups.update(queue for queue in full if transaction.value("next_ready_type", (queue, "")))


def _claim(transaction: Transaction, request: Reserve, queue: str, limit: int, epoch: int) -> int:
    types = _types_to_claim(transaction, request.types, queue, limit)
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


def _types_to_claim(transaction: Transaction, known: frozenset[str] | None, queue: str, limit: int) -> list[str]:
    """The types in which the first tasks of a queue stand, of those that the worker knows."""
    if known is None:
        types = [name for (name,) in transaction.rows("ready_types", {"queue": queue})]
    else:
        types = list(_ready_types(transaction, queue, _ordered(known)))
    most = max(limit, _FEW_TYPES)
    if len(types) <= most:
        return types
    bindings = {"types": msgspec.json.encode(types).decode(), "queue": queue, "most": most}
    return [name for (name,) in transaction.rows("first_types", bindings)]


def _ready_types(transaction: Transaction, queue: str, known: Sequence[str]) -> Iterator[str]:
    """Those of the known types that wait; as few steps in the index as there are types of either kind."""
    name = transaction.value("next_ready_type", (queue, ""))
    while name is not None and (place := bisect_left(known, name)) < len(known):
        if name == known[place]:
            yield name
            name = transaction.value("next_ready_type", (queue, name))
        else:
            name = transaction.value("ready_type_from", (queue, known[place]))


@lru_cache(maxsize=16)
def _ordered(types: frozenset[str]) -> Sequence[str]:
    return sorted(types)


@lru_cache(maxsize=32)
def _claim_statement(types: int) -> str:
    """The claim over this many types: SQLite merges their index ranges and stops at the limit."""
    ranges = [render(_ONE_TYPE, n=str(n)) for n in range(types)]
    while len(ranges) > 1:
        groups = [ranges[n : n + _MAX_PARTS] for n in range(0, len(ranges), _MAX_PARTS)]
        ranges = [f"SELECT rank, seq FROM ({_merged(group)})" for group in groups]  # noqa: S608
    return SQL["claim"].replace("{candidates}", f"SELECT seq FROM ({_merged(ranges)})")  # noqa: S608


def _merged(ranges: Sequence[str]) -> str:
    return f"{' UNION ALL '.join(ranges)} ORDER BY rank, seq LIMIT :limit"


def _claimed_rows(transaction: Transaction, request: Reserve) -> list[Any]:
    rows = transaction.rows("claimed_by_id", (request.claim_id,))
    order = {share.queue: position for position, share in enumerate(request.shares)}
    rows.sort(key=lambda row: (order.get(row[_QUEUE], 0), row[_RANK], row[_SEQ]))
    return rows


def _without_room(rows: Sequence[Any], held: AbstractSet[int], request: Reserve) -> list[Any]:
    """The new ones from the first on that does not fit into the answer; the first of all always does."""
    if sum([row[_BYTES] for row in rows]) <= request.max_bytes:
        return []  # as nearly always
    new = [row for row in rows if row[_SEQ] not in held]
    sums = accumulate(row[_BYTES] for row in new)
    fitting = sum(1 for _ in takewhile(lambda total: total <= request.max_bytes, sums))
    return new[max(fitting, 1) :]


def _tasks(transaction: Transaction, rows: Sequence[Any]) -> list[Claimed]:
    """The claimed tasks; those that cannot be decoded become dead letters."""
    tasks: list[Claimed] = []
    unreadable: list[Change] = []
    for row in rows:
        try:
            tasks.append(_task(transaction, row))
        except Unreadable as error:
            unreadable.append(bury_unreadable(row[0], row[1], error))
    settlements.apply(transaction, unreadable)
    return tasks


def _task(transaction: Transaction, row: Sequence[Any]) -> Claimed:
    task_id, token, task_type, queue, payload, headers, priority, policy, attempt, created_at_ms = row[:10]
    return Claimed(
        task_id,
        token,
        task_type,
        queue,
        transaction.value("payload", (row[_SEQ],)) if payload is None else payload,
        headers_of(headers),
        priority,
        policy_of(policy),
        attempt,
        created_at_ms,
        row[10],
        row[11],
    )


# -- leases --------------------------------------------------------------------------------------------------


def check(transaction: Transaction, holds: Sequence[Hold]) -> list[Extension]:
    """As `extend`, without a change."""
    return [_checked(transaction, hold) for hold in holds]


def _checked(transaction: Transaction, hold: Hold) -> Extension:
    return _extension(transaction, hold, transaction.row("check_claim", {"task_id": hold.task_id, "token": hold.token}))


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
    return _extension(transaction, hold, rows[0] if rows else ())


def _extension(transaction: Transaction, hold: Hold, found: Sequence[Any]) -> Extension:
    if found:
        return Extension(held=True, cancel_requested=bool(found[0]))
    known = transaction.row("standing", (hold.task_id,))
    return Extension(held=False, reason="stale_claim" if known else "unknown")
