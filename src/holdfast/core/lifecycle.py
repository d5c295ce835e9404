"""The state machine, and the only place that knows it.

`TRANSITIONS` is the one table: (state, event) -> state. A `Change` is one event for one task, made by the
named constructors below; stores execute changes and never decide. `step` says in plain Python what executing
means: it is the oracle of the conformance kit, and the stores' SQL and Lua are rendered from the same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from holdfast.core.durations import LONGEST_MS
from holdfast.core.ids import fencing_token
from holdfast.core.names import reason_of
from holdfast.core.retry import DEFAULT_POLICY, RunPolicy
from holdfast.core.task import FINAL_STATES, HISTORY_LIMIT, Failure, State
from holdfast.errors import BadDuration

#: Runs that use up no attempt of a task whose arguments do not fit the worker's signature: with a backoff of 30 s to
#: 30 min, most of a day for a deploy to end. Snoozed and released runs count towards it.
MAX_UNFIT_RUNS: Final = 50
#: The outcome of such a run, and the reason of a dead letter that comes of it.
UNFIT: Final = "bad_arguments"


class Event(StrEnum):
    """What can happen to a task."""

    UNBLOCK = "unblock"  # what it waited for has ended
    PROMOTE = "promote"  # its time has come
    RESERVE = "reserve"  # a worker takes it
    ACK = "ack"
    RETRY = "retry"  # the attempt failed, another one follows
    FAIL = "fail"  # failed for good, no dead letter kept
    BURY = "bury"  # failed for good, becomes a dead letter
    SNOOZE = "snooze"  # asks to run later, uses up no attempt
    RELEASE = "release"  # the worker returns it unfinished, uses up no attempt
    REQUEUE = "requeue"  # the worker or its lease is gone, the attempt is used up
    STOP = "stop"  # the run ends the task as cancelled
    CANCEL = "cancel"  # a client wants it not to run
    EXPIRE = "expire"  # its deadline to start has passed before any run
    PRIORITIZE = "prioritize"  # a client wants it sooner or later than others
    RESCHEDULE = "reschedule"  # a client wants it to run at another time
    REPLAY = "replay"  # put back with fresh attempts
    DISCARD = "discard"  # deleted, with a record of it


_S = State
TRANSITIONS: Final[Mapping[tuple[State, Event], State | None]] = MappingProxyType(
    {
        (_S.BLOCKED, Event.UNBLOCK): _S.READY,
        (_S.BLOCKED, Event.CANCEL): _S.CANCELLED,
        (_S.BLOCKED, Event.EXPIRE): _S.CANCELLED,
        (_S.BLOCKED, Event.PRIORITIZE): _S.BLOCKED,
        (_S.SCHEDULED, Event.PROMOTE): _S.READY,
        (_S.SCHEDULED, Event.CANCEL): _S.CANCELLED,
        (_S.SCHEDULED, Event.EXPIRE): _S.CANCELLED,
        (_S.SCHEDULED, Event.PRIORITIZE): _S.SCHEDULED,
        (_S.SCHEDULED, Event.RESCHEDULE): _S.SCHEDULED,
        (_S.READY, Event.RESERVE): _S.CLAIMED,
        (_S.READY, Event.CANCEL): _S.CANCELLED,
        (_S.READY, Event.EXPIRE): _S.CANCELLED,
        (_S.READY, Event.PRIORITIZE): _S.READY,
        (_S.READY, Event.RESCHEDULE): _S.SCHEDULED,
        (_S.CLAIMED, Event.ACK): _S.SUCCEEDED,
        (_S.CLAIMED, Event.RETRY): _S.RETRY_PENDING,
        (_S.CLAIMED, Event.FAIL): _S.FAILED,
        (_S.CLAIMED, Event.BURY): _S.DEAD_LETTERED,
        (_S.CLAIMED, Event.SNOOZE): _S.SCHEDULED,
        (_S.CLAIMED, Event.RELEASE): _S.READY,
        (_S.CLAIMED, Event.REQUEUE): _S.READY,
        (_S.CLAIMED, Event.STOP): _S.CANCELLED,
        (_S.CLAIMED, Event.CANCEL): _S.CLAIMED,  # the run is told, and ends with STOP
        (_S.RETRY_PENDING, Event.PROMOTE): _S.READY,
        (_S.RETRY_PENDING, Event.CANCEL): _S.CANCELLED,
        (_S.RETRY_PENDING, Event.PRIORITIZE): _S.RETRY_PENDING,
        (_S.RETRY_PENDING, Event.RESCHEDULE): _S.RETRY_PENDING,
        (_S.FAILED, Event.REPLAY): _S.READY,
        (_S.FAILED, Event.DISCARD): None,
        (_S.DEAD_LETTERED, Event.REPLAY): _S.READY,
        (_S.DEAD_LETTERED, Event.DISCARD): None,
    }
)

#: Events that end a claim; each needs its token, and writes one line of history.
SETTLEMENTS: Final = frozenset(
    {Event.ACK, Event.RETRY, Event.FAIL, Event.BURY, Event.SNOOZE, Event.RELEASE, Event.REQUEUE, Event.STOP}
)
#: Events that would give the task another run: once a cancellation was accepted, they end it instead.
RUNS_AGAIN: Final = frozenset({Event.RETRY, Event.SNOOZE, Event.RELEASE, Event.REQUEUE})
#: Events that give back the attempt they used.
SPARES_ATTEMPT: Final = frozenset({Event.SNOOZE, Event.RELEASE})


def sources(event: Event) -> tuple[State, ...]:
    """The states in which this event may happen."""
    return tuple(state for state, known in TRANSITIONS if known is event)


def target(state: State, event: Event, cancel_requested: bool = False) -> State | None:
    """Where the event leads; `KeyError` if the table does not have it, None if the task is deleted."""
    to = TRANSITIONS[state, event]
    return State.CANCELLED if cancel_requested and event in RUNS_AGAIN else to


class Change(msgspec.Struct, frozen=True):
    """One event for one task, with its guards. Make it with a constructor of this module."""

    event: Event
    task_id: str
    #: Guard: the claim that must be current. Settlements have one, the others have none.
    token: str | None = None
    #: Guard: the lease must have run out, by the store's clock.
    expired_only: bool = False
    #: Guard: the epoch of the maintenance leader that must be current.
    epoch: int | None = None
    #: RETRY, SNOOZE and RESCHEDULE: how long to wait, by the store's clock.
    delay_ms: int = 0
    #: How the attempt ended, for the history.
    outcome: str = ""
    error: Failure | None = None
    result: bytes | None = None
    #: Why the task ended so, or who discarded it and why.
    reason: str | None = None
    #: PRIORITIZE: the new priority.
    priority: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """The answer to one change."""

    applied: bool
    #: Applied by an earlier call with the same token: the same answer again.
    repeated: bool = False
    #: Why not: "unknown", "stale_claim", "wrong_state", "not_expired", "stale_epoch".
    reason: str = ""
    #: The state in which the task is now, if there is one.
    state: State | None = None


UNKNOWN: Final = Verdict(False, reason="unknown")


# -- how a run ends ------------------------------------------------------------------------------------------


def ack(task_id: str, token: str, result: bytes | None = None) -> Change:
    """The attempt succeeded."""
    return Change(Event.ACK, task_id, token, outcome="succeeded", result=result)


def fail(
    task_id: str,
    token: str,
    failure: Failure,
    *,
    attempt: int,
    policy: RunPolicy,
    retryable: bool,
    random_unit: float,
    retry_in_ms: int | None = None,
) -> Change:
    """The attempt failed: another one after the backoff, or the end."""
    if retryable and attempt < policy.max_attempts:
        delay_ms = policy.delay_ms(attempt, random_unit) if retry_in_ms is None else retry_in_ms
        return Change(Event.RETRY, task_id, token, delay_ms=delay_ms, outcome="failed", error=failure)
    event = Event.BURY if policy.dead_letter else Event.FAIL
    reason = "max_attempts" if retryable else "not_retryable"
    return Change(event, task_id, token, outcome="failed", error=failure, reason=reason)


def time_out(
    task_id: str, token: str, failure: Failure, *, attempt: int, policy: RunPolicy, random_unit: float
) -> Change:
    """The attempt ran into its time limit: it counts, and another one follows after the backoff while there are any."""
    change = fail(task_id, token, failure, attempt=attempt, policy=policy, retryable=True, random_unit=random_unit)
    reason = None if change.event is Event.RETRY else "timed_out"
    return msgspec.structs.replace(change, outcome="timed_out", reason=reason)


def snooze(task_id: str, token: str, delay_ms: int) -> Change:
    """The task asks to run again later; no attempt is used up."""
    delay_ms = checked_delay_ms(delay_ms, "Snooze")
    return Change(Event.SNOOZE, task_id, token, delay_ms=delay_ms, outcome="snoozed")


def unfit(task_id: str, token: str, failure: Failure, *, attempt: int, policy: RunPolicy, random_unit: float) -> Change:
    """The arguments do not fit this worker's signature: another worker may have it, so no attempt is used up at first.

    After `MAX_UNFIT_RUNS` each such run is a failed attempt, until the attempts are used up.
    """
    spared = fencing_token(token) - attempt
    if spared < MAX_UNFIT_RUNS:
        delay_ms = DEFAULT_POLICY.delay_ms(spared + 1, random_unit)
        return Change(Event.SNOOZE, task_id, token, delay_ms=delay_ms, outcome=UNFIT, error=failure)
    change = fail(task_id, token, failure, attempt=attempt, policy=policy, retryable=True, random_unit=random_unit)
    reason = None if change.event is Event.RETRY else UNFIT
    return msgspec.structs.replace(change, outcome=UNFIT, reason=reason)


def checked_delay_ms(delay_ms: int, what: str) -> int:
    """The delay that a task asks for by a `what`, which may be a subclass of the original; refused if it is none."""
    if not isinstance(delay_ms, int) or not 0 <= delay_ms <= LONGEST_MS:
        raise BadDuration(
            f"{what}: a delay of {reason_of(delay_ms)} ms is refused: it must be between 0 and 100 years; "
            f"a subclass of {what} must call super().__init__(delay)"
        )
    return delay_ms


def release(task_id: str, token: str) -> Change:
    """The worker hands the task back unfinished; no attempt is used up."""
    return Change(Event.RELEASE, task_id, token, outcome="released")


def stop(task_id: str, token: str, reason: str | None = None) -> Change:
    """The run ends the task as cancelled; without a reason, for the one that the canceller gave."""
    return Change(Event.STOP, task_id, token, outcome="cancelled", reason=None if reason is None else reason_of(reason))


def lose(task_id: str, token: str, cause: str, *, attempt: int, policy: RunPolicy, detail: str = "") -> Change:
    """The worker died: the delivery counts, so that a task that kills its worker cannot loop for ever."""
    failure = Failure(cause, reason_of(detail) if detail else cause.replace("_", " "))
    if attempt < policy.max_attempts:
        return Change(Event.REQUEUE, task_id, token, outcome=cause, error=failure)
    event = Event.BURY if policy.dead_letter else Event.FAIL
    return Change(event, task_id, token, outcome=cause, error=failure, reason="worker_lost")


def expire_lease(task_id: str, token: str, *, attempt: int, policy: RunPolicy, epoch: int, detail: str = "") -> Change:
    """The lease ran out; takes effect only if it is still so when the store gets to it."""
    change = lose(task_id, token, "lease_expired", attempt=attempt, policy=policy, detail=detail)
    return msgspec.structs.replace(change, expired_only=True, epoch=epoch)


# -- what people ask for -------------------------------------------------------------------------------------


def cancel(task_id: str, reason: str = "cancelled") -> Change:
    """A waiting task never runs; a running one is told."""
    return Change(Event.CANCEL, task_id, reason=reason_of(reason))


def expire(task_id: str, reason: str, epoch: int | None = None) -> Change:
    """Cancels a task that no worker ever began; one that has begun once does not expire."""
    return Change(Event.EXPIRE, task_id, epoch=epoch, reason=reason_of(reason))


def prioritize(task_id: str, priority: int) -> Change:
    """Gives a waiting task another priority, and the place in its queue that goes with it."""
    return Change(Event.PRIORITIZE, task_id, priority=priority)


def reschedule(task_id: str, delay_ms: int) -> Change:
    """Has a task that is ready or delayed run after this time, 0 for at once; its attempts stay as they are."""
    if not 0 <= delay_ms <= LONGEST_MS:
        raise BadDuration(f"a delay of {delay_ms} ms is refused: it must be between 0 and 100 years")
    return Change(Event.RESCHEDULE, task_id, delay_ms=delay_ms)


def replay(task_id: str) -> Change:
    """Puts a dead letter back with fresh attempts."""
    return Change(Event.REPLAY, task_id)


def discard(task_id: str, reason: str) -> Change:
    """Deletes a dead letter; the store keeps a record with payload and reason."""
    return Change(Event.DISCARD, task_id, reason=reason_of(reason))


# -- what executing a change means ---------------------------------------------------------------------------


class Standing(msgspec.Struct, frozen=True):
    """The part of a task that changes: the machine's whole memory of it."""

    state: State
    run_at_ms: int
    attempt: int = 0
    deliveries: int = 0
    token: str | None = None
    lease_expires_at_ms: int | None = None
    cancel_requested: bool = False
    finished_at_ms: int | None = None
    reason: str | None = None
    priority: int = 0
    #: The last claims that have ended, as many as the history keeps: the token of each and the event that ended it.
    settled: tuple[tuple[str, Event], ...] = ()


def step(standing: Standing | None, change: Change, now_ms: int, epoch: int) -> tuple[Verdict, Standing | None]:
    """The verdict on a change, and the standing after it; a refused change leaves it as it was."""
    refused = refusal(standing, change, now_ms, epoch)
    if refused is not None or standing is None:
        return refused or UNKNOWN, standing
    to = target(standing.state, change.event, standing.cancel_requested)
    after = None if to is None else _moved(standing, change, to, now_ms)
    return Verdict(True, state=to), after


def refusal(standing: Standing | None, change: Change, now_ms: int, epoch: int) -> Verdict | None:
    """Why a change may not be applied (or that it was, by an earlier call); None if its guards hold."""
    if change.epoch is not None and change.epoch != epoch:
        return Verdict(False, reason="stale_epoch", state=standing.state if standing else None)
    if standing is None:
        return UNKNOWN
    if change.event in SETTLEMENTS:
        if standing.token != change.token or change.token is None:
            repeated = (change.token, change.event) in standing.settled
            return Verdict(repeated, repeated, "" if repeated else "stale_claim", standing.state)
        if change.expired_only and (standing.lease_expires_at_ms or 0) > now_ms:
            return Verdict(False, reason="not_expired", state=standing.state)
    elif (standing.state, change.event) not in TRANSITIONS or _has_begun(standing, change):
        repeated = change.event is Event.CANCEL and standing.state is State.CANCELLED
        return Verdict(repeated, repeated, "" if repeated else "wrong_state", standing.state)
    return None


def _has_begun(standing: Standing, change: Change) -> bool:
    return change.event is Event.EXPIRE and standing.deliveries > 0


def _moved(standing: Standing, change: Change, to: State, now_ms: int) -> Standing:
    if change.event is Event.PRIORITIZE:
        return msgspec.structs.replace(standing, priority=change.priority)
    if change.event is Event.CANCEL and to is State.CLAIMED:
        return msgspec.structs.replace(standing, cancel_requested=True, reason=change.reason)
    settled = standing.settled
    if change.event in SETTLEMENTS:
        settled = (*settled, (standing.token or "", change.event))[-HISTORY_LIMIT:]
    return Standing(
        state=to,
        run_at_ms=_run_at_ms(standing, change, to, now_ms),
        attempt=_attempts_used(standing, change),
        deliveries=standing.deliveries,
        finished_at_ms=now_ms if to in FINAL_STATES else None,
        reason=_reason(standing, change, to),
        priority=standing.priority,
        settled=settled,
    )


def _run_at_ms(standing: Standing, change: Change, to: State, now_ms: int) -> int:
    if to in (State.RETRY_PENDING, State.SCHEDULED):
        return now_ms + change.delay_ms
    # A replayed task queues up anew; a handed-back one keeps its place.
    return now_ms if change.event is Event.REPLAY else standing.run_at_ms


def _attempts_used(standing: Standing, change: Change) -> int:
    if change.event is Event.REPLAY:
        return 0
    return standing.attempt - 1 if change.event in SPARES_ATTEMPT else standing.attempt


def _reason(standing: Standing, change: Change, to: State) -> str | None:
    if to is State.CANCELLED and change.reason is None:
        return standing.reason
    return change.reason if to in FINAL_STATES else None
