"""Upkeep and what belongs to it: promote, expired, overdue, prune, duties, the worker list."""

from __future__ import annotations

import msgspec

from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.task import FINAL_STATES, Lapsed
from holdfast.stores.contract import MAX_BATCH, Duty, Promoted, Retention, WorkerOrders, WorkerRecord
from holdfast.stores.sqlite import keeping
from holdfast.stores.sqlite.settling import delete
from holdfast.stores.sqlite.transaction import Transaction, policy_of

#: A worker that went silent is shown as such for a day.
_SILENT_WORKER_MS = 86_400_000
#: So many deadlines that mean nothing any more are cleared away at once, or the writers would wait for it too long.
_DEADLINE_PAGES = 20
_record_decoder = msgspec.json.Decoder(WorkerRecord)
_orders_decoder = msgspec.json.Decoder(WorkerOrders)


def promote(transaction: Transaction, epoch: int, limit: int) -> Promoted:
    """Due tasks to `ready`, the longest due first; rings wherever tasks wait."""
    transaction.check_epoch(epoch)
    queues = transaction.rows("promote", {"now": transaction.now_ms, "limit": limit})
    transaction.bells.update({queue for (queue,) in transaction.rows("queues_that_wait")})
    next_due = transaction.value("next_due")
    return Promoted(len(queues), None if next_due is None else max(0, next_due - transaction.now_ms))


def expired(transaction: Transaction, limit: int) -> list[Lapsed]:
    """Claims whose lease has run out."""
    rows = transaction.rows("expired", {"now": transaction.now_ms, "limit": limit})
    return [
        Lapsed(task_id, token, attempt, policy_of(policy), worker) for task_id, token, attempt, policy, worker in rows
    ]


def deadline_has_passed(transaction: Transaction) -> bool:
    """Whether there is any deadline to start that has passed, be it that of a task which has begun."""
    return transaction.value("deadline_has_passed", (transaction.now_ms,)) is not None


def overdue(transaction: Transaction, limit: int) -> list[str]:
    """Tasks past their deadline to start; deadlines that do not count any more are cleared away."""
    found: list[str] = []
    for _ in range(_DEADLINE_PAGES):
        rows = transaction.rows("deadlines_passed", {"now": transaction.now_ms, "limit": max(limit, MAX_BATCH)})
        found = [task_id for _, task_id, waits in rows if waits]
        begun = [(seq,) for seq, _, waits in rows if not waits]
        transaction.run_many("delete_deadline", begun)
        if not begun or len(found) >= limit:
            break
    return found[:limit]


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


def announce(transaction: Transaction, worker: WorkerRecord, ttl_ms: int) -> WorkerOrders | None:
    """Keeps a worker on the list for a while, or takes it off; the orders left for it."""
    if ttl_ms <= 0:
        transaction.run("drop_worker", (worker.worker_id,))
        return None
    record = msgspec.json.encode(worker)
    [(orders,)] = transaction.rows(
        "put_worker", {"worker_id": worker.worker_id, "record": record, "now": transaction.now_ms, "ttl_ms": ttl_ms}
    )
    return None if orders is None else _orders_decoder.decode(orders)


def order(transaction: Transaction, worker_id: str, orders: WorkerOrders) -> bool:
    """Leaves orders for a worker that is on the list."""
    transaction.run("order_worker", {"worker_id": worker_id, "orders": msgspec.json.encode(orders)})
    return transaction.connection.changes() > 0


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


def pause(transaction: Transaction, queue: str, paused: bool) -> None:
    """Stops or resumes a queue."""
    transaction.run("pause" if paused else "resume", (queue,))
    if not paused:
        transaction.bells.add(queue)


def set_step(transaction: Transaction, queue: str, step_ms: int) -> None:
    """Keeps what a level of priority is worth in a queue, and gives its ready tasks their new places."""
    if step_ms == (transaction.value("step", (queue,)) or AGED_STEP_MS):
        return
    if step_ms == AGED_STEP_MS:
        transaction.run("drop_step", (queue,))
    else:
        transaction.run("put_step", {"queue": queue, "step_ms": step_ms})
    transaction.run("rank_again", {"queue": queue, "step_ms": step_ms})
