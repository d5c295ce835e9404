"""Apply: executes changes as `lifecycle.step` says. The SQL is rendered from the table; nothing is decided here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import groupby

import msgspec

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Change, Event, Standing, Verdict
from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.task import FINAL_STATES, State
from holdfast.stores.contract import UPKEEP_BELL
from holdfast.stores.sqlite.transaction import SQL, Transaction

_encode = msgspec.json.Encoder().encode


def apply(transaction: Transaction, changes: Sequence[Change]) -> list[Verdict]:
    """One verdict a change; runs of the same settlement are executed together."""
    verdicts: list[Verdict] = []
    for event, run in groupby(changes, key=lambda change: change.event):
        group = list(run)
        together = _apply_together(transaction, event, group) if _can_go_together(event, group) else None
        verdicts += together or [_apply_one(transaction, change) for change in group]
    return verdicts


# -- many at once: the hot path ------------------------------------------------------------------------------


def _can_go_together(event: Event, group: Sequence[Change]) -> bool:
    """Settlements that lead to one state whatever was asked before, each task once, no epoch to compare."""
    return (
        event in lifecycle.SETTLEMENTS
        and event not in lifecycle.RUNS_AGAIN
        and all(change.epoch is None and change.token is not None for change in group)
        and len({change.task_id for change in group}) == len(group)
    )


def _apply_together(transaction: Transaction, event: Event, group: Sequence[Change]) -> list[Verdict] | None:
    """Settles them all, or changes nothing and answers None if the claim of one is not current."""
    bindings = {"changes": _as_json(group), "now": transaction.now_ms}
    connection = transaction.connection
    connection.execute("SAVEPOINT settle")
    transaction.run("record_attempts", {**bindings, "event": event.value})
    if connection.changes() != len(group):
        connection.execute("ROLLBACK TO settle; RELEASE settle")
        return None
    connection.execute(_settle_statement(event), bindings)
    connection.execute("RELEASE settle")
    return [Verdict(True, state=lifecycle.target(State.CLAIMED, event))] * len(group)


# -- one at a time -------------------------------------------------------------------------------------------


def _apply_one(transaction: Transaction, change: Change) -> Verdict:
    found = transaction.row("standing", (change.task_id,))
    standing = _standing(transaction, change, found) if found else None
    epoch = 0 if change.epoch is None else transaction.epoch()
    refused = lifecycle.refusal(standing, change, transaction.now_ms, epoch)
    if refused is not None or standing is None:
        return refused or lifecycle.UNKNOWN
    to = lifecycle.target(standing.state, change.event, standing.cancel_requested)
    queue, seq = found[9:]
    _execute(transaction, change, to, seq)
    _ring(transaction, to, queue)
    return Verdict(True, state=to)


def _execute(transaction: Transaction, change: Change, to: State | None, seq: int) -> None:
    about = {"task_id": change.task_id, "now": transaction.now_ms}
    if change.event in lifecycle.SETTLEMENTS:
        bindings = {"changes": _as_json([change]), "now": transaction.now_ms}
        transaction.run("record_attempts", {**bindings, "event": change.event.value})
        transaction.connection.execute(_settle_statement(change.event), bindings)
    elif change.event is Event.CANCEL:
        name = "request_cancel" if to is State.CLAIMED else "cancel_waiting"
        transaction.run(name, {**about, "reason": change.reason})
    elif change.event is Event.REPLAY:
        transaction.run("replay", {**about, "step_ms": AGED_STEP_MS})
    elif change.event is Event.DISCARD:
        transaction.run("record_discard", {**about, "reason": change.reason or ""})
        delete(transaction, [seq])
    else:
        raise ValueError(f"{change.event} is no change: it has a store method of its own")


def delete(transaction: Transaction, seqs: Sequence[int]) -> None:
    """Removes tasks with all that belongs to them."""
    for name in ("delete_attempts", "delete_envelope", "delete_task"):
        transaction.run_many(name, [(seq,) for seq in seqs])


def _standing(transaction: Transaction, change: Change, row: Sequence[object]) -> Standing:
    ended = transaction.value("settled_by", (row[10], change.token)) if change.token is not None else None
    return msgspec.convert(
        {
            **dict(zip(Standing.__struct_fields__, row[:9], strict=False)),
            "cancel_requested": bool(row[6]),
            "settled": [] if ended is None else [(change.token, ended)],
        },
        Standing,
    )


def _ring(transaction: Transaction, to: State | None, queue: str) -> None:
    if to is State.READY:
        transaction.bells.add(queue)
    elif to in (State.SCHEDULED, State.RETRY_PENDING):
        transaction.bells.add(UPKEEP_BELL)


# -- from changes to SQL -------------------------------------------------------------------------------------


@cache
def _settle_statement(event: Event) -> str:
    """The settle statement of one event, with the targets of the transition table rendered in."""
    plain = lifecycle.target(State.CLAIMED, event)
    wanted = lifecycle.target(State.CLAIMED, event, cancel_requested=True)
    later = ":now + (c.value ->> 6)" if event in (Event.RETRY, Event.SNOOZE) else "run_at_ms"
    reason = "c.value ->> 8"
    kept = f"coalesce({reason}, reason)"
    parts = {
        "new_state": _either(f"'{plain}'", f"'{wanted}'"),
        "new_run_at": _either(later, later if wanted is plain else "run_at_ms"),
        "spared": "1" if event in lifecycle.SPARES_ATTEMPT else "0",
        "new_finished_at": _either(_finished(plain), _finished(wanted)),
        "new_reason": _either(_reason(plain, reason, kept), _reason(wanted, reason, kept)),
    }
    text = SQL["settle"]
    for name, expression in parts.items():
        text = text.replace("{" + name + "}", expression)
    return text


def _either(plain: str, cancelled: str) -> str:
    return plain if plain == cancelled else f"CASE WHEN cancel_requested THEN {cancelled} ELSE {plain} END"


def _finished(state: State | None) -> str:
    return ":now" if state in FINAL_STATES else "NULL"


def _reason(state: State | None, given: str, kept: str) -> str:
    if state is State.CANCELLED:
        return kept
    return given if state in FINAL_STATES else "NULL"


def _as_json(changes: Sequence[Change]) -> str:
    rows = [
        (
            change.task_id,
            change.token,
            change.outcome,
            change.error.type if change.error else None,
            _encode(change.error).decode() if change.error else None,
            change.result.decode() if change.result is not None else None,
            change.delay_ms,
            change.lapsed_only,
            change.reason,
        )
        for change in changes
    ]
    return _encode(rows).decode()
