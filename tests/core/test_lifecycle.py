from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import lifecycle
from holdfast.core.durations import LONGEST_MS
from holdfast.core.lifecycle import (
    SETTLEMENTS,
    TRANSITIONS,
    Change,
    Event,
    Standing,
    sources,
    step,
    target,
)
from holdfast.core.names import MAX_REASON_CHARS
from holdfast.core.retry import RunPolicy
from holdfast.core.task import FINAL_STATES, WAITING_STATES, Cancel, Failure, State
from holdfast.errors import BadDuration

TASK = "0" * 32
TOKEN = "1.2.abc"
NOW_MS = 1_000_000
EPOCH = 7
BOOM = Failure("builtins.ValueError", "boom")
PAIRS = list(product(State, Event))


def standing_in(state: State, *, cancel_requested: bool = False, deliveries: int = 3) -> Standing:
    claimed = state is State.CLAIMED
    return Standing(
        state=state,
        run_at_ms=500_000,
        attempt=2,
        deliveries=deliveries,
        token=TOKEN if claimed else None,
        lease_expires_at_ms=NOW_MS - 1 if claimed else None,
        cancel_requested=cancel_requested,
        reason="asked to stop" if cancel_requested else None,
    )


def change_of(event: Event) -> Change:
    return Change(event, TASK, TOKEN if event in SETTLEMENTS else None, delay_ms=4_000, reason="because")


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_exactly_the_pairs_of_the_table_are_possible(state: State, event: Event) -> None:
    before = standing_in(state, deliveries=0 if event is Event.EXPIRE else 3)
    verdict, after = step(before, change_of(event), NOW_MS, EPOCH)
    if (state, event) in TRANSITIONS:
        assert verdict.applied
        assert not verdict.repeated
        assert verdict.state is TRANSITIONS[state, event] is (after.state if after else None)
    else:
        assert after == before
        assert verdict.state is state
        cancelled_already = state is State.CANCELLED and event is Event.CANCEL
        assert verdict.applied == verdict.repeated == cancelled_already


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_the_target_outside_the_table_is_an_error_and_not_a_guess(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert target(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(KeyError):
            target(state, event)


def test_sources_and_table_say_the_same() -> None:
    for event in Event:
        assert {(state, event) for state in sources(event)} == {pair for pair in TRANSITIONS if pair[1] is event}


def test_every_state_can_be_reached_and_left_or_is_final() -> None:
    # `ready`, `scheduled` and `blocked` are where an enqueued task begins.
    reached = {State.READY, State.SCHEDULED, State.BLOCKED}
    while more := {to for (state, _), to in TRANSITIONS.items() if state in reached and to} - reached:
        reached |= more
    assert reached == set(State)
    left = {state for state, _ in TRANSITIONS}
    assert set(State) - left == {State.SUCCEEDED, State.CANCELLED}


def test_from_every_state_that_is_not_final_a_final_one_can_be_reached() -> None:
    ends = set(FINAL_STATES)
    while more := {state for (state, _), to in TRANSITIONS.items() if to in ends} - ends:
        ends |= more
    assert ends == set(State)


def test_final_states_are_left_by_replay_and_discard_only() -> None:
    final = {(state, event) for state, event in TRANSITIONS if state in FINAL_STATES}
    assert {event for _, event in final} == {Event.REPLAY, Event.DISCARD}
    assert {state for state, _ in final} == {State.FAILED, State.DEAD_LETTERED}
    assert not FINAL_STATES & WAITING_STATES


def test_only_a_claimed_task_can_be_settled_and_only_a_ready_one_claimed() -> None:
    from_claimed = {event for state, event in TRANSITIONS if state is State.CLAIMED}
    assert from_claimed - {Event.CANCEL} == SETTLEMENTS
    for event in SETTLEMENTS:
        assert sources(event) == (State.CLAIMED,)
    assert sources(Event.RESERVE) == (State.READY,)


@pytest.mark.parametrize("state", sorted(WAITING_STATES))
def test_a_task_that_has_begun_once_does_not_expire(state: State) -> None:
    before = standing_in(state, deliveries=1)
    verdict, after = step(before, lifecycle.expire(TASK, "too late"), NOW_MS, EPOCH)
    assert (verdict.applied, verdict.reason, verdict.state) == (False, "wrong_state", state)
    assert after == before


def test_an_expired_task_is_cancelled_for_the_reason_given_and_only_by_the_owner_of_the_upkeep() -> None:
    before = standing_in(State.READY, deliveries=0)
    verdict, after = step(before, lifecycle.expire(TASK, "too late", EPOCH), NOW_MS, EPOCH)
    assert verdict.applied
    assert after is not None
    assert (after.state, after.reason, after.finished_at_ms) == (State.CANCELLED, "too late", NOW_MS)
    verdict, after = step(before, lifecycle.expire(TASK, "too late", EPOCH - 1), NOW_MS, EPOCH)
    assert (verdict.applied, verdict.reason, after) == (False, "stale_epoch", before)


@pytest.mark.parametrize("state", sorted(WAITING_STATES))
def test_a_new_priority_changes_nothing_else(state: State) -> None:
    before = standing_in(state)
    verdict, after = step(before, lifecycle.prioritize(TASK, 9), NOW_MS, EPOCH)
    assert (verdict.applied, verdict.state) == (True, state)
    assert after == msgspec.structs.replace(before, priority=9)


@pytest.mark.parametrize("state", lifecycle.sources(Event.RESCHEDULE))
def test_a_new_time_keeps_attempts_and_history(state: State) -> None:
    before = msgspec.structs.replace(standing_in(state), attempt=2, deliveries=3, priority=4)
    verdict, after = step(before, lifecycle.reschedule(TASK, 500), NOW_MS, EPOCH)
    to = State.RETRY_PENDING if state is State.RETRY_PENDING else State.SCHEDULED
    assert (verdict.applied, verdict.state) == (True, to)
    assert after == msgspec.structs.replace(before, state=to, run_at_ms=NOW_MS + 500)


@pytest.mark.parametrize("delay_ms", [-1, LONGEST_MS + 1])
def test_a_new_time_out_of_range_is_refused(delay_ms: int) -> None:
    with pytest.raises(BadDuration):
        lifecycle.reschedule(TASK, delay_ms)


def test_a_priority_survives_a_run() -> None:
    before = msgspec.structs.replace(standing_in(State.CLAIMED), priority=9)
    _, after = step(before, lifecycle.release(TASK, TOKEN), NOW_MS, EPOCH)
    assert after is not None
    assert after.priority == 9


@pytest.mark.parametrize(
    ("attempt", "dead_letter", "event", "reason"),
    [
        (1, True, Event.RETRY, None),
        (3, True, Event.BURY, "timed_out"),
        (3, False, Event.FAIL, "timed_out"),
    ],
)
def test_a_run_that_timed_out_is_retried_and_ends_as_timed_out(
    attempt: int, dead_letter: bool, event: Event, reason: str | None
) -> None:
    policy = RunPolicy(max_attempts=3, base_ms=1_000, jitter=0, dead_letter=dead_letter, give_up_on=("x.Y",))
    late = Failure("holdfast.errors.TimedOut", "its limit of 1s")
    change = lifecycle.time_out(TASK, TOKEN, late, attempt=attempt, policy=policy, random_unit=0)
    assert (change.event, change.outcome, change.reason, change.error) == (event, "timed_out", reason, late)
    assert change.delay_ms == (1_000 if event is Event.RETRY else 0)


@pytest.mark.parametrize("event", sorted(SETTLEMENTS))
def test_the_same_settlement_twice_is_a_success_twice_and_changes_nothing_more(event: Event) -> None:
    change = change_of(event)
    _, after = step(standing_in(State.CLAIMED), change, NOW_MS, EPOCH)
    verdict, again = step(after, change, NOW_MS + 50, EPOCH)
    assert verdict.applied
    assert verdict.repeated
    assert again == after


@pytest.mark.parametrize(("first", "second"), list(product(sorted(SETTLEMENTS), repeat=2)))
def test_another_settlement_with_a_used_token_is_stale(first: Event, second: Event) -> None:
    if first is second:
        return
    _, after = step(standing_in(State.CLAIMED), change_of(first), NOW_MS, EPOCH)
    verdict, unchanged = step(after, change_of(second), NOW_MS, EPOCH)
    assert (verdict.applied, verdict.reason) == (False, "stale_claim")
    assert unchanged == after


@pytest.mark.parametrize("event", sorted(SETTLEMENTS))
@pytest.mark.parametrize("token", [None, "", "1.1.abc", "1.2.abd", "2.2.abc"])
def test_a_settlement_needs_the_current_token(event: Event, token: str | None) -> None:
    before = standing_in(State.CLAIMED)
    change = msgspec.structs.replace(change_of(event), token=token)
    verdict, after = step(before, change, NOW_MS, EPOCH)
    assert (verdict.applied, verdict.reason) == (False, "stale_claim")
    assert after == before


@pytest.mark.parametrize("event", [Event.RETRY, Event.SNOOZE, Event.RELEASE, Event.REQUEUE])
def test_an_accepted_cancellation_wins_over_another_run(event: Event) -> None:
    _, told = step(standing_in(State.CLAIMED), lifecycle.cancel(TASK, "no longer wanted"), NOW_MS, EPOCH)
    assert told is not None
    assert (told.state, told.cancel_requested, told.token) == (State.CLAIMED, True, TOKEN)
    settlement = msgspec.structs.replace(change_of(event), reason=None)
    verdict, after = step(told, settlement, NOW_MS, EPOCH)
    assert after is not None
    assert verdict.state is after.state is State.CANCELLED
    assert (after.reason, after.finished_at_ms) == ("no longer wanted", NOW_MS)


@pytest.mark.parametrize("event", [Event.ACK, Event.FAIL, Event.BURY])
def test_a_run_that_ended_all_the_same_keeps_its_own_end(event: Event) -> None:
    verdict, _ = step(standing_in(State.CLAIMED, cancel_requested=True), change_of(event), NOW_MS, EPOCH)
    assert verdict.state is TRANSITIONS[State.CLAIMED, event]


@pytest.mark.parametrize("state", sorted(WAITING_STATES))
def test_a_waiting_task_is_cancelled_at_once_and_a_second_time_too(state: State) -> None:
    change = lifecycle.cancel(TASK, "changed my mind")
    _, after = step(standing_in(state), change, NOW_MS, EPOCH)
    assert after is not None
    assert (after.state, after.reason, after.finished_at_ms) == (State.CANCELLED, "changed my mind", NOW_MS)
    verdict, again = step(after, change, NOW_MS + 1, EPOCH)
    assert verdict.repeated
    assert again == after


@pytest.mark.parametrize("event", sorted(SETTLEMENTS))
def test_attempts_are_used_up_unless_the_task_was_handed_back(event: Event) -> None:
    _, after = step(standing_in(State.CLAIMED), change_of(event), NOW_MS, EPOCH)
    assert after is not None
    assert after.attempt == (1 if event in (Event.SNOOZE, Event.RELEASE) else 2)
    assert after.deliveries == 3


def test_waiting_times_count_from_the_store_clock_and_a_handed_back_task_keeps_its_place() -> None:
    run_at_ms = {}
    for event in SETTLEMENTS:
        _, after = step(standing_in(State.CLAIMED), change_of(event), NOW_MS, EPOCH)
        assert after is not None
        run_at_ms[event] = after.run_at_ms
    assert run_at_ms[Event.RETRY] == run_at_ms[Event.SNOOZE] == NOW_MS + 4_000
    assert run_at_ms[Event.RELEASE] == run_at_ms[Event.REQUEUE] == 500_000


def test_a_replayed_dead_letter_queues_up_anew_with_fresh_attempts() -> None:
    _, after = step(standing_in(State.DEAD_LETTERED), lifecycle.replay(TASK), NOW_MS, EPOCH)
    assert after is not None
    assert (after.state, after.attempt, after.run_at_ms) == (State.READY, 0, NOW_MS)
    assert (after.finished_at_ms, after.reason, after.deliveries) == (None, None, 3)


def test_a_discarded_task_is_gone_and_then_unknown() -> None:
    change = lifecycle.discard(TASK, "a typo")
    verdict, after = step(standing_in(State.DEAD_LETTERED), change, NOW_MS, EPOCH)
    assert verdict.applied
    assert after is None
    assert step(None, change, NOW_MS, EPOCH)[0].reason == "unknown"


@pytest.mark.parametrize("event", list(Event))
def test_nothing_can_happen_to_a_task_that_is_not_there(event: Event) -> None:
    verdict, after = step(None, change_of(event), NOW_MS, EPOCH)
    assert (verdict.applied, verdict.reason, after) == (False, "unknown", None)


def expire_lease(epoch: int = EPOCH, attempt: int = 2) -> Change:
    return lifecycle.expire_lease(TASK, TOKEN, attempt=attempt, policy=RunPolicy(), epoch=epoch)


def test_a_lease_is_taken_away_only_when_it_has_run_out_and_not_by_an_old_owner() -> None:
    live = msgspec.structs.replace(standing_in(State.CLAIMED), lease_expires_at_ms=NOW_MS + 1)
    assert step(live, expire_lease(), NOW_MS, EPOCH)[0].reason == "not_expired"
    assert step(live, expire_lease(), NOW_MS + 1, EPOCH)[0].applied
    assert step(live, expire_lease(EPOCH - 1), NOW_MS + 1, EPOCH)[0].reason == "stale_epoch"
    assert step(None, expire_lease(EPOCH - 1), NOW_MS, EPOCH)[0].reason == "stale_epoch"


def test_a_failed_attempt_is_retried_until_the_attempts_are_used_up() -> None:
    policy = RunPolicy(max_attempts=3, base_ms=1_000, jitter=0.0)

    def failed(attempt: int, **more: object) -> Change:
        options = {"policy": policy, "retryable": True, "random_unit": 0.0} | more
        return lifecycle.fail(TASK, TOKEN, BOOM, attempt=attempt, **options)  # type: ignore[arg-type]

    assert [failed(attempt).event for attempt in (1, 2, 3)] == [Event.RETRY, Event.RETRY, Event.BURY]
    assert [failed(attempt).delay_ms for attempt in (1, 2)] == [1_000, 2_000]
    assert failed(3).reason == "max_attempts"
    assert failed(1, retry_in_ms=77).delay_ms == 77
    assert (failed(1, retryable=False).event, failed(1, retryable=False).reason) == (Event.BURY, "not_retryable")
    no_letters = msgspec.structs.replace(policy, dead_letter=False)
    assert failed(3, policy=no_letters).event is Event.FAIL


def test_a_run_whose_arguments_do_not_fit_uses_up_no_attempt_until_there_were_many() -> None:
    def unfit(delivery: int, attempt: int = 1, *, max_attempts: int = 1) -> Change:
        policy = RunPolicy(max_attempts=max_attempts)
        token = f"1.{delivery}.abc"
        return lifecycle.unfit(TASK, token, BOOM, attempt=attempt, policy=policy, random_unit=0.0)

    first = [unfit(delivery) for delivery in range(1, lifecycle.MAX_UNFIT_RUNS + 1)]
    assert {(change.event, change.outcome, change.error) for change in first} == {(Event.SNOOZE, "bad_arguments", BOOM)}
    assert [change.delay_ms // 1_000 for change in first[:8]] == [30, 60, 120, 240, 480, 960, 1_800, 1_800]
    assert sum(change.delay_ms for change in first) < 86_400_000
    last = unfit(lifecycle.MAX_UNFIT_RUNS + 1)
    assert (last.event, last.outcome, last.reason) == (Event.BURY, "bad_arguments", "bad_arguments")
    counted = unfit(lifecycle.MAX_UNFIT_RUNS + 1, max_attempts=2)
    assert (counted.event, counted.outcome, counted.reason) == (Event.RETRY, "bad_arguments", None)
    assert unfit(lifecycle.MAX_UNFIT_RUNS + 2, 2, max_attempts=2).event is Event.BURY


@given(st.integers(1, 20), st.integers(1, 20), st.booleans())
def test_a_task_that_kills_its_worker_cannot_loop_for_ever(attempt: int, max_attempts: int, dead_letter: bool) -> None:
    policy = RunPolicy(max_attempts=max_attempts, dead_letter=dead_letter)
    change = lifecycle.lose(TASK, TOKEN, "worker_lost", attempt=attempt, policy=policy)
    assert change.error is not None
    if attempt < max_attempts:
        assert change.event is Event.REQUEUE
    else:
        assert change.event is (Event.BURY if dead_letter else Event.FAIL)
        assert change.reason == "worker_lost"


def test_constructors_make_the_event_that_they_are_named_after() -> None:
    made = {
        lifecycle.ack(TASK, TOKEN, b"1"): Event.ACK,
        lifecycle.snooze(TASK, TOKEN, 5): Event.SNOOZE,
        lifecycle.release(TASK, TOKEN): Event.RELEASE,
        lifecycle.stop(TASK, TOKEN, "why"): Event.STOP,
        lifecycle.cancel(TASK): Event.CANCEL,
        lifecycle.replay(TASK): Event.REPLAY,
        lifecycle.discard(TASK, "why"): Event.DISCARD,
    }
    assert {change.event: event for change, event in made.items()} == {event: event for event in made.values()}
    for change in made:
        assert (change.token is not None) == (change.event in SETTLEMENTS)


changes = st.builds(
    Change,
    event=st.sampled_from(Event),
    task_id=st.just(TASK),
    token=st.sampled_from([None, TOKEN, "1.3.new"]),
    delay_ms=st.integers(0, 10_000),
    reason=st.sampled_from([None, "why"]),
)


@given(st.lists(changes, max_size=30))
def test_whatever_happens_in_whatever_order_the_standing_makes_sense(events: list[Change]) -> None:
    standing: Standing | None = standing_in(State.CLAIMED)
    for now_ms, change in enumerate(events, NOW_MS):
        verdict, after = step(standing, change, now_ms, EPOCH)
        if not verdict.applied or verdict.repeated:
            assert after == standing
        standing = after
        if standing is None:
            continue
        assert (standing.finished_at_ms is not None) == (standing.state in FINAL_STATES)
        assert standing.attempt >= 0
        assert len(set(standing.settled)) == len(standing.settled)


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("half \ud83d", r"half \ud83d"),
        ("NUL \0", r"NUL \x00"),
        ("whole 😀", "whole 😀"),
        ("x" * 5_000, "x" * (MAX_REASON_CHARS - 1) + "…"),
    ],
)
def test_reasons_can_be_stored_whoever_gives_them(said: str, kept: str) -> None:
    changes = (
        lifecycle.cancel("id", said),
        lifecycle.discard("id", said),
        lifecycle.expire("id", said),
        lifecycle.stop("id", "token", said),
        lifecycle.stop("id", "token", Cancel(said).reason),
    )
    assert {change.reason for change in changes} == {kept}


@pytest.mark.parametrize("delay_ms", [-1, None, "10", 1.5, LONGEST_MS + 1, 10**30])
def test_a_snooze_without_a_proper_delay_is_refused(delay_ms: Any) -> None:
    with pytest.raises(BadDuration, match="super"):
        lifecycle.snooze("id", "token", delay_ms)
