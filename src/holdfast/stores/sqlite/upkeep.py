"""Upkeep and what belongs to it: promote, expired, prune, duties, the worker list."""

from __future__ import annotations

import msgspec

from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.task import FINAL_STATES, Lapsed
from holdfast.stores.contract import Duty, Promoted, Retention, WorkerRecord
from holdfast.stores.sqlite import keeping
from holdfast.stores.sqlite.settling import delete
from holdfast.stores.sqlite.transaction import Transaction, policy_of

#: A worker that went silent is shown as such for a day.
_SILENT_WORKER_MS = 86_400_000
_record_decoder = msgspec.json.Decoder(WorkerRecord)


def promote(transaction: Transaction, epoch: int, limit: int) -> Promoted:
    """Due tasks to `ready`, the longest due first; rings wherever tasks wait."""
    transaction.check_epoch(epoch)
    bindings = {"now": transaction.now_ms, "limit": limit, "step_ms": AGED_STEP_MS}
    queues = transaction.rows("promote", bindings)
    transaction.bells.update({queue for (queue,) in transaction.rows("queues_that_wait")})
    next_due = transaction.value("next_due")
    return Promoted(len(queues), None if next_due is None else max(0, next_due - transaction.now_ms))


def expired(transaction: Transaction, limit: int) -> list[Lapsed]:
    """Claims whose lease has run out."""
    rows = transaction.rows("expired", {"now": transaction.now_ms, "limit": limit})
    return [
        Lapsed(task_id, token, attempt, policy_of(policy), worker) for task_id, token, attempt, policy, worker in rows
    ]


def prune(transaction: Transaction, epoch: int, retention: Retention, limit: int) -> int:
    """Finished tasks past their retention, by age first, then by count; then what is not kept any longer."""
    transaction.check_epoch(epoch)
    now_ms = transaction.now_ms
    seqs: list[int] = []
    for state in sorted(FINAL_STATES):
        before = now_ms - retention.age_ms(state)
        bindings = {"state": state.value, "before": before, "limit": limit - len(seqs)}
        seqs += [seq for (seq,) in transaction.rows("old_finished", bindings)]
    seqs = seqs or _surplus(transaction, retention.keep, limit)
    delete(transaction, seqs)
    transaction.run("prune_discards", {"before": now_ms - retention.discards_ms, "limit": limit})
    transaction.run("prune_workers", {"before": now_ms - _SILENT_WORKER_MS})
    return len(seqs) + keeping.prune(transaction, limit - len(seqs))


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


def hold_duty(transaction: Transaction, name: str, owner: str, ttl_ms: int) -> Duty:
    """Takes, keeps or lets go a duty."""
    found = transaction.row("duty", (name,))
    holder, epoch, expires_at_ms = found or ("", 0, 0)
    now_ms = transaction.now_ms
    running = expires_at_ms > now_ms
    if running and holder != owner:
        return Duty(name, holder, epoch, held=False, expires_in_ms=expires_at_ms - now_ms)
    if ttl_ms <= 0:
        if running:
            transaction.run("put_duty", {"name": name, "owner": holder, "epoch": epoch, "expires_at_ms": now_ms})
        return Duty(name, "", epoch, held=False)
    epoch = epoch if running else epoch + 1
    expiry = {"name": name, "owner": owner, "epoch": epoch, "expires_at_ms": now_ms + ttl_ms}
    transaction.run("put_duty", expiry)
    return Duty(name, owner, epoch, held=True, expires_in_ms=ttl_ms)


def announce(transaction: Transaction, worker: WorkerRecord, ttl_ms: int) -> None:
    """Keeps a worker on the list for a while, or takes it off."""
    if ttl_ms <= 0:
        transaction.run("drop_worker", (worker.worker_id,))
        return
    record = msgspec.json.encode(worker)
    transaction.run(
        "put_worker", {"worker_id": worker.worker_id, "record": record, "now": transaction.now_ms, "ttl_ms": ttl_ms}
    )


def workers(transaction: Transaction) -> list[WorkerRecord]:
    """All workers heard of."""
    return [
        msgspec.structs.replace(
            _record_decoder.decode(record),
            started_at_ms=started_at_ms,
            seen_at_ms=seen_at_ms,
            alive=expires_at_ms > transaction.now_ms,
        )
        for record, started_at_ms, seen_at_ms, expires_at_ms in transaction.rows("workers")
    ]
