"""Maintenance and what belongs to it: promote, expired, prune, leadership, the list of workers."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.core.task import FINAL_STATES, ExpiredClaim, State
from holdfast.stores.contract import (
    MAX_BATCH,
    SILENT_WORKER_MS,
    Leadership,
    Promoted,
    Retention,
    WorkerOrders,
    WorkerRecord,
)
from holdfast.stores.decode import shown_policy
from holdfast.stores.documents import ORDERS
from holdfast.stores.sqlite import documents
from holdfast.stores.sqlite.settlements import delete
from holdfast.stores.sqlite.transaction import Transaction

#: A worker that went silent is shown as such for a day.
#: The most pages of deadlines without a meaning that are cleared away at once: writers wait meanwhile.
_DEADLINE_PAGES = 20
#: On a full disk each pruning is small: what it writes must fit into the room that is left for it.
_NEARLY_FULL_BATCH = 50
_record_decoder = msgspec.json.Decoder(WorkerRecord)


def promote(transaction: Transaction, epoch: int, limit: int) -> Promoted:
    """Due tasks to `ready`, the longest due first; notifies every queue in which tasks wait."""
    transaction.check_epoch(epoch)
    queues = transaction.rows("promote", {"now": transaction.now_ms, "limit": limit})
    transaction.wakeups.update({queue for (queue,) in transaction.rows("queues_that_wait")})
    next_due = transaction.value("next_due")
    return Promoted(len(queues), None if next_due is None else max(0, next_due - transaction.now_ms))


class FoundExpired(NamedTuple):
    """Claims whose lease has expired, and what else is to be done about leases and deadlines."""

    claims: list[ExpiredClaim]
    #: Some leases lie further ahead than they can, because the clock was set back.
    ahead: bool
    #: Some deadline to start has passed, be it that of a task which has begun.
    unstarted: bool


def expired(transaction: Transaction, limit: int) -> FoundExpired:
    """Claims whose lease has expired, and whether `shorten_leases` or `unstarted` have anything to do."""
    rows = transaction.rows("expired", {"now": transaction.now_ms, "limit": limit})
    found = [
        ExpiredClaim(task_id, token, attempt, shown_policy(policy), worker)
        for task_id, token, attempt, policy, worker, ahead in rows
        if not ahead
    ]
    passed = transaction.value("deadline_has_passed", (transaction.now_ms,)) is not None
    return FoundExpired(found, len(found) < len(rows), passed)


def shorten_leases(transaction: Transaction) -> None:
    """Leases that were given before the clock was set back end no later than if they were given now."""
    transaction.run("shorten_leases", {"now": transaction.now_ms})


def unstarted(transaction: Transaction, limit: int) -> list[str]:
    """Tasks that were not started in time; deadlines that do not count any more are cleared away."""
    found: list[str] = []
    for _ in range(_DEADLINE_PAGES):
        rows = transaction.rows("deadlines_passed", {"now": transaction.now_ms, "limit": max(limit, MAX_BATCH)})
        found = [task_id for _, task_id, waits in rows if waits]
        begun = [(seq,) for seq, _, waits in rows if not waits]
        transaction.run_many("delete_deadline", begun)
        if not begun or len(found) >= limit:
            break
    return found[:limit]


def prune(transaction: Transaction, epoch: int, retention: Retention, limit: int, *, nearly_full: bool = False) -> int:
    """Finished tasks whose time is over, then those that are too many; then expired documents."""
    transaction.check_epoch(epoch)
    now_ms = transaction.now_ms
    limit = min(limit, _NEARLY_FULL_BATCH) if nearly_full else limit
    seqs: list[int] = []
    for state in sorted(FINAL_STATES):
        bindings = {"state": state.value, "now": now_ms, "limit": limit - len(seqs)}
        seqs += [seq for (seq,) in transaction.rows("old_finished", bindings)]
    seqs = seqs or (_old_results(transaction, retention, limit) if nearly_full else [])
    seqs = seqs or _surplus(transaction, retention.keep, limit)
    delete(transaction, seqs)
    transaction.run("prune_discards", {"before": now_ms - retention.discards_ms, "limit": limit})
    transaction.run("prune_workers", {"before": now_ms - SILENT_WORKER_MS})
    transaction.run("prune_orders")
    return len(seqs) + documents.prune(transaction, limit - len(seqs))


def _old_results(transaction: Transaction, retention: Retention, limit: int) -> list[int]:
    """What makes room for new tasks: results of a while ago, whatever time they were to be kept."""
    seqs: list[int] = []
    for state in (State.SUCCEEDED, State.CANCELLED):
        before = transaction.now_ms - retention.nearly_full_ms
        bindings = {"state": state.value, "before": before, "limit": limit - len(seqs)}
        seqs += [seq for (seq,) in transaction.rows("finished_before", bindings)]
    return seqs


def _surplus(transaction: Transaction, keep: int, limit: int) -> list[int]:
    # Counting takes a scan, and is pointless while not even the numbers given out reach the limit.
    if (transaction.value("seq_span") or 0) <= keep:
        return []
    seqs: list[int] = []
    for state in sorted(FINAL_STATES):
        surplus = transaction.value("count_finished", {"state": state.value}) - keep
        if surplus > 0 and len(seqs) < limit:
            bindings = {"state": state.value, "limit": min(surplus, limit - len(seqs))}
            seqs += [seq for (seq,) in transaction.rows("oldest_finished", bindings)]
    return seqs


def lead(transaction: Transaction, name: str, owner: str, ttl_ms: int) -> Leadership:
    """Takes, renews or lets go a leadership."""
    now_ms = transaction.now_ms
    leader, epoch, expires_at_ms, granted_ms = _leader(transaction, name)
    running = expires_at_ms > now_ms
    if running and leader != owner:
        if expires_at_ms == now_ms + granted_ms:
            # Taken before the clock was set back: from now on it lasts no longer than it was asked for.
            _put_leader(transaction, Leadership(name, leader, epoch, held=False, expires_in_ms=granted_ms), granted_ms)
        return Leadership(name, leader, epoch, held=False, expires_in_ms=expires_at_ms - now_ms)
    if ttl_ms <= 0:
        if running:
            _put_leader(transaction, Leadership(name, leader, epoch, held=False), 0)
        return Leadership(name, "", epoch, held=False)
    taken = Leadership(name, owner, epoch if running else epoch + 1, held=True, expires_in_ms=ttl_ms)
    _put_leader(transaction, taken, ttl_ms)
    return taken


def leader(transaction: Transaction, name: str) -> Leadership:
    """Who leads, without a change."""
    owner, epoch, expires_at_ms, _ = _leader(transaction, name)
    if expires_at_ms <= transaction.now_ms:
        return Leadership(name, "", epoch, held=False)
    return Leadership(name, owner, epoch, held=False, expires_in_ms=expires_at_ms - transaction.now_ms)


def _leader(transaction: Transaction, name: str) -> tuple[str, int, int, int]:
    """Owner, epoch, end and time to live; never further ahead than that, as after the clock was set back."""
    owner, epoch, expires_at_ms, ttl_ms = transaction.row("leader", (name,)) or ("", 0, 0, 0)
    return owner, epoch, min(expires_at_ms, transaction.now_ms + ttl_ms), ttl_ms


def _put_leader(transaction: Transaction, new: Leadership, ttl_ms: int) -> None:
    expires_at_ms = transaction.now_ms + new.expires_in_ms
    transaction.run(
        "put_leader",
        {"name": new.name, "owner": new.owner, "epoch": new.epoch, "expires_at_ms": expires_at_ms, "ttl_ms": ttl_ms},
    )


def announce(transaction: Transaction, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
    """Keeps a worker on the list for a while, or takes it off; the orders left for it."""
    if ttl_ms <= 0:
        transaction.run("drop_worker", (worker.worker_id,))
        transaction.run("drop_document", {"kind": ORDERS, "name": worker.worker_id})
        return None
    record = msgspec.json.encode(worker)
    transaction.run(
        "put_worker", {"worker_id": worker.worker_id, "record": record, "now": transaction.now_ms, "ttl_ms": ttl_ms}
    )
    return documents.orders(transaction, worker.worker_id)


def workers(transaction: Transaction) -> list[WorkerRecord]:
    """All workers heard of."""
    return [
        msgspec.structs.replace(
            _record_decoder.decode(record),
            started_at_ms=started_at_ms,
            seen_at_ms=seen_at_ms,
            # Seen longer ahead than it may be silent: the clock was set back since.
            alive=2 * seen_at_ms - expires_at_ms <= transaction.now_ms < expires_at_ms,
        )
        for record, started_at_ms, seen_at_ms, expires_at_ms in transaction.rows("workers")
    ]
