"""Apply: executes changes. What a change means is asked of `core/lifecycle.py`; nothing is decided here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Change, Event, Standing, Verdict
from holdfast.core.task import HISTORY_LIMIT, State
from holdfast.stores.contract import MAINTENANCE_WAKEUP
from holdfast.stores.sqlite import documents
from holdfast.stores.sqlite.transaction import Transaction

_encode = msgspec.json.Encoder().encode
#: Far below the longest text that SQLite takes, also when every character of it is escaped.
_MAX_TEXT_BYTES: Final = 64 * 1024 * 1024
_ACKED: Final = Verdict(True, state=lifecycle.target(State.CLAIMED, Event.ACK))


def apply(transaction: Transaction, changes: Sequence[Change]) -> list[Verdict]:
    """One verdict a change, in order; runs of acks are executed together."""
    verdicts: list[Verdict] = []
    for is_ack, run in groupby(changes, key=lambda change: change.event is Event.ACK):
        group = list(run)
        together = _ack_together(transaction, group) if is_ack else None
        verdicts += together or [_apply(transaction, change) for change in group]
    return verdicts


def _ack_together(transaction: Transaction, acks: Sequence[Change]) -> list[Verdict] | None:
    """The hot path: acks them all in one statement, or changes nothing and answers None if that cannot be done."""
    text = _as_text(acks)
    if text is None:
        return None
    connection = transaction.connection
    connection.execute("SAVEPOINT acks")
    # One statement for the whole batch, because SQLite then works through it without Python's lock.
    transaction.run("ack", {"changes": text, "now": transaction.now_ms})
    if connection.changes() != len(acks):
        connection.execute("ROLLBACK TO acks; RELEASE acks")
        return None
    connection.execute("RELEASE acks")
    return [_ACKED] * len(acks)


def _as_text(acks: Sequence[Change]) -> str | None:
    """The batch as JSON; None if one of the results is no text, or all of them are too long."""
    if any(ack.result is not None and b"\0" in ack.result for ack in acks):
        return None
    if sum([len(ack.result) for ack in acks if ack.result is not None]) > _MAX_TEXT_BYTES:
        return None
    try:
        rows = [(ack.task_id, ack.token, None if ack.result is None else ack.result.decode()) for ack in acks]
    except UnicodeDecodeError:
        return None
    return _encode(rows).decode()


# -- one at a time -------------------------------------------------------------------------------------------


def _apply(transaction: Transaction, change: Change) -> Verdict:
    row = transaction.row("standing", (change.task_id,))
    standing = _standing(transaction, change, row) if row else None
    epoch = 0 if change.epoch is None else transaction.epoch()
    verdict, after = lifecycle.step(standing, change, transaction.now_ms, epoch)
    if not verdict.applied or verdict.repeated:
        return verdict
    queue, seq = row[10:]
    _execute(transaction, change, after, seq)
    _notify(transaction, change, after, queue)
    return verdict


def _standing(transaction: Transaction, change: Change, row: Sequence[Any]) -> Standing:
    state, run_at_ms, attempt, deliveries, token, lease_expires_at_ms, cancel_requested = row[:7]
    claimed, succeeded = state == State.CLAIMED, state == State.SUCCEEDED
    settled: tuple[tuple[str, Event], ...] = ()
    if succeeded and token == change.token:
        settled = ((token, Event.ACK),)
    elif change.token is not None:
        # The success that stands in the task's own row is one of the entries that are kept.
        first = deliveries - HISTORY_LIMIT if succeeded else 0
        ended_by = transaction.value("settled_by", (row[11], change.token, first))
        settled = ((change.token, Event(ended_by)),) if ended_by else ()
    return Standing(
        state=State(state),
        run_at_ms=run_at_ms,
        attempt=attempt,
        deliveries=deliveries,
        token=token if claimed else None,
        lease_expires_at_ms=lease_expires_at_ms,
        cancel_requested=bool(cancel_requested),
        finished_at_ms=row[7],
        reason=row[8],
        priority=row[9],
        settled=settled,
    )


def _execute(transaction: Transaction, change: Change, after: Standing | None, seq: int) -> None:
    if change.event is Event.ACK:
        transaction.run("ack_one", {"seq": seq, "now": transaction.now_ms, "result": change.result})
    elif after is None:
        documents.record_discard(transaction, seq, change.reason or "")
        delete(transaction, [seq])
    elif change.event is Event.PRIORITIZE:
        transaction.run("prioritize", {"seq": seq, "priority": after.priority})
    elif after.state is State.CLAIMED:
        transaction.run("request_cancel", {"seq": seq, "reason": after.reason})
    else:
        if change.event in lifecycle.SETTLEMENTS:
            _record_attempt(transaction, change, seq)
            if after.deliveries > HISTORY_LIMIT:
                transaction.run("trim_attempts", (seq, after.deliveries - HISTORY_LIMIT))
        transaction.run("settle", _columns(after, seq))
        if change.event is Event.EXPIRE:
            transaction.run("delete_deadline", (seq,))


def _record_attempt(transaction: Transaction, change: Change, seq: int) -> None:
    transaction.run(
        "record_attempt",
        {
            "seq": seq,
            "now": transaction.now_ms,
            "event": change.event.value,
            "outcome": change.outcome,
            "error_type": change.error.type if change.error else None,
            "error": _encode(change.error).decode() if change.error else None,
        },
    )


def _columns(after: Standing, seq: int) -> dict[str, Any]:
    return {
        "seq": seq,
        "state": after.state.value,
        "run_at_ms": after.run_at_ms,
        "attempt": after.attempt,
        "finished_at_ms": after.finished_at_ms,
        "reason": after.reason,
    }


def delete(transaction: Transaction, seqs: Sequence[int]) -> None:
    """Removes tasks with all that belongs to them."""
    for name in ("delete_attempts", "delete_deadline", "delete_envelope", "delete_task"):
        transaction.run_many(name, [(seq,) for seq in seqs])


def _notify(transaction: Transaction, change: Change, after: Standing | None, queue: str) -> None:
    if after is None or change.event in (Event.CANCEL, Event.PRIORITIZE):
        return
    if after.state is State.READY:
        transaction.wakeups.add(queue)
    elif after.state in (State.SCHEDULED, State.RETRY_PENDING):
        transaction.wakeups.add(MAINTENANCE_WAKEUP)
