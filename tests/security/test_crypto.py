"""Signed and encrypted arguments: without a worker."""

from __future__ import annotations

import base64
import hmac
import json
import os
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Holdfast, Keys
from holdfast.core.ids import occurrence_id
from holdfast.core.payload import SIGNATURE_HEADER, is_encrypted
from holdfast.core.retry import DEFAULT_POLICY
from holdfast.core.schedule import decide as rescheduling
from holdfast.core.schedule.decide import changed_call
from holdfast.core.schedule.occurrences import shown_time, task_of_occurrence, task_on_demand
from holdfast.core.schedule.record import Missed, Overlap, Schedule, ScheduledCall, Timing
from holdfast.core.task import Claimed, NewTask, State, Task
from holdfast.errors import BadOption, BadSchedule, NotGenuine, PayloadTooLarge, UnknownKey
from holdfast.security.crypto import REMEMBERED_MS, SIGNED_WITHIN_MS, PayloadCrypto, shown
from holdfast.security.keys import parse_keys

OLD, NEW = Keys({"old": b"o" * 32}), Keys({"new": b"n" * 32, "old": b"o" * 32})
PAYLOAD = b'{"to":"ann@example.com","password":"hunter2"}'


NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
EVERY_MINUTE = Timing(every_ms=60_000)


def crypto_with(signing: Keys | None = None, encryption: Keys | None = None) -> PayloadCrypto:
    return PayloadCrypto(signing, encryption, 10_000, os.urandom, lambda: NOW_MS)


def new_task(**fields: Any) -> NewTask:
    return NewTask(**{"task_id": "a" * 32, "type": "mail", "queue": "out", "payload": PAYLOAD, **fields})


def claimed(task: NewTask, **fields: Any) -> Claimed:
    plain: dict[str, Any] = {
        "task_id": task.task_id,
        "token": "1.1.c",
        "type": task.type,
        "queue": task.queue,
        "payload": task.payload,
        "headers": task.headers,
        "priority": 0,
        "policy": DEFAULT_POLICY,
        "attempt": 1,
        "created_at_ms": NOW_MS,
        "claimed_at_ms": NOW_MS,
    }
    return Claimed(**{**plain, **fields})


# -- signatures --------------------------------------------------------------------------------------------------


def test_a_signed_task_is_opened_and_its_arguments_stay_readable() -> None:
    signs = crypto_with(signing=OLD)
    task = signs.task(new_task(headers={"trace": "1"}))
    assert task.payload == PAYLOAD
    assert task.headers["trace"] == "1"
    assert task.headers[SIGNATURE_HEADER].startswith("v1.old.")
    assert signs.opened(claimed(task)) == PAYLOAD


@pytest.mark.parametrize(
    "change",
    [
        {"payload": PAYLOAD.replace(b"ann", b"eve")},
        {"queue": "elsewhere"},
        {"type": "mail.all"},
        {"task_id": "b" * 32},
        {"headers": {SIGNATURE_HEADER: "v1.old.1800000000.AAAA"}},
        {"headers": {SIGNATURE_HEADER: "v1.old.AAAA"}},
        {"headers": {SIGNATURE_HEADER: "v1.old.soon.AAAA"}},
        {"headers": {SIGNATURE_HEADER: "v2.old.1800000000.AAAA"}},
        {"headers": {SIGNATURE_HEADER: "v1.old.1800000000."}},
        {"headers": {SIGNATURE_HEADER: "v1.old.1800000000.é"}},
        {"headers": {SIGNATURE_HEADER: ""}},
    ],
    ids=str,
)
def test_what_was_changed_or_moved_is_refused(change: dict[str, Any]) -> None:
    signs = crypto_with(signing=OLD)
    with pytest.raises(NotGenuine, match="does not fit"):
        signs.opened(claimed(signs.task(new_task()), **change))


@pytest.mark.parametrize("hours", [-2, -1.1, 1.1, 48])
def test_a_copy_that_is_enqueued_when_the_task_is_forgotten_is_refused(hours: float) -> None:
    """A store knows a signed task for two hours after its end, at least: until then it refuses the task_id."""
    signs = crypto_with(signing=OLD)
    task = signs.task(new_task())
    for late_ms in (0, HOUR_MS, -HOUR_MS):
        assert signs.opened(claimed(task, created_at_ms=NOW_MS + late_ms)) == PAYLOAD
    with pytest.raises(NotGenuine, match="a copy of an old task, or the clock of its producer is wrong"):
        signs.opened(claimed(task, created_at_ms=NOW_MS + round(hours * HOUR_MS)))
    assert 2 * SIGNED_WITHIN_MS == REMEMBERED_MS


def test_signed_tasks_are_kept_for_as_long_as_their_signatures_are_good() -> None:
    app = Holdfast("sqlite://", result_ttl=0, dead_letter_ttl="1m", signing=OLD)
    assert (app.policy.result_ttl_ms, app.policy.dead_letter_ttl_ms) == (REMEMBERED_MS, REMEMBERED_MS)
    assert Holdfast("sqlite://", result_ttl="3h", signing=OLD).policy.result_ttl_ms == 3 * HOUR_MS
    assert Holdfast("sqlite://", result_ttl=0).policy.result_ttl_ms == 0


# -- schedules ---------------------------------------------------------------------------------------------------


def occurrence(signs: PayloadCrypto, occurrence_ms: int = NOW_MS, timing: Timing = EVERY_MINUTE) -> NewTask:
    call = signs.call(ScheduledCall(type="mail", queue="out", payload=PAYLOAD), "nightly", timing)
    return task_of_occurrence(Schedule(name="nightly", timing=timing, call=call), occurrence_ms, 3)


def test_each_occurrence_is_good_under_its_own_task_id_only() -> None:
    signs = crypto_with(signing=OLD)
    task = occurrence(signs)
    assert task == occurrence(signs)
    assert signs.opened(claimed(task)) == PAYLOAD
    copies: list[dict[str, Any]] = [
        {"task_id": "c" * 32},
        {"task_id": occurrence_id("nightly", NOW_MS + 1, 3)},
        {"task_id": occurrence_id("nightly", NOW_MS + 60_000, 3)},
        {"task_id": occurrence_id("hourly", NOW_MS, 3)},
        {"headers": {**task.headers, "occurrence": "2027-01-15T08:01:00Z"}},
    ]
    for change in copies:
        with pytest.raises(NotGenuine, match="it is a copy"):
            signs.opened(claimed(task, **change))
    for name, value in {"schedule": "hourly", "holdfast-timing": '{"every_ms":1000}'}.items():
        with pytest.raises(NotGenuine, match="does not fit"):
            signs.opened(claimed(task, headers={**task.headers, name: value}))
    forged = signs.task(new_task()).headers[SIGNATURE_HEADER].replace("v1", "s1")
    with pytest.raises(NotGenuine, match="does not fit"):
        signs.opened(claimed(new_task(headers={SIGNATURE_HEADER: forged})))


def made_up(task: NewTask, occurrence_ms: int) -> NewTask:
    """A copy under the ids of another occurrence, as somebody without the key may make it."""
    headers = {**task.headers, "occurrence": shown_time(occurrence_ms)}
    return replace(task, task_id=occurrence_id("nightly", occurrence_ms, 3), headers=headers)


@pytest.mark.parametrize(
    ("timing", "occurrences_before_now_ms", "words"),
    [
        (EVERY_MINUTE, 1, "no such occurrence"),
        (EVERY_MINUTE, -60_000, "before its time"),
        (EVERY_MINUTE, HOUR_MS, ""),
        (EVERY_MINUTE, HOUR_MS + 120_000, "too late"),
        (Timing(every_ms=60_000, missed=Missed.ALL, window_ms=24 * HOUR_MS), 24 * HOUR_MS, ""),
        (Timing(every_ms=60_000, missed=Missed.ALL, window_ms=24 * HOUR_MS), 24 * HOUR_MS + 60_000, "too late"),
        (Timing(every_ms=60_000, overlap=Overlap.QUEUE), 7 * 24 * HOUR_MS, ""),
        (Timing(every_ms=60_000, overlap=Overlap.QUEUE), 8 * 24 * HOUR_MS, "too late"),
        (Timing(cron="0 8 15 * *"), 0, ""),
        (Timing(cron="0 8 15 * *"), 31 * 24 * HOUR_MS, ""),
        (Timing(cron="0 8 15 * *"), 61 * 24 * HOUR_MS, "too late"),
    ],
    ids=str,
)
def test_only_occurrences_become_tasks_and_none_is_made_when_the_last_one_is_forgotten(
    timing: Timing, occurrences_before_now_ms: int, words: str
) -> None:
    """A missed occurrence is made up for if its schedule says so: the latest one, those of a window, one that waits."""
    signs = crypto_with(signing=OLD)
    occurrence_ms = NOW_MS - occurrences_before_now_ms
    task = made_up(occurrence(signs, timing=timing), occurrence_ms)
    if not words:
        assert signs.opened(claimed(task)) == PAYLOAD
        genuine = occurrence(signs, occurrence_ms, timing)
        assert min(genuine.policy.result_ttl_ms, genuine.policy.dead_letter_ttl_ms) >= occurrences_before_now_ms
        return
    with pytest.raises(NotGenuine, match=words):
        signs.opened(claimed(task))


def test_a_task_on_demand_is_signed_for_itself() -> None:
    signs = crypto_with(signing=OLD, encryption=OLD)
    call = signs.call(
        ScheduledCall(type="mail", queue="out", payload=PAYLOAD, headers={"a": "b"}), "nightly", EVERY_MINUTE
    )
    schedule = Schedule(name="nightly", timing=EVERY_MINUTE, call=call)
    assert signs.opened_call(schedule) == ScheduledCall(type="mail", queue="out", payload=PAYLOAD, headers={"a": "b"})
    task = signs.on_demand(schedule, task_on_demand(schedule, "a" * 32))
    assert signs.opened(claimed(task)) == PAYLOAD
    assert task.headers.keys() == {"a", "schedule", SIGNATURE_HEADER}
    with pytest.raises(NotGenuine, match="does not fit"):
        signs.opened(claimed(task, task_id="b" * 32))
    with pytest.raises(NotGenuine, match="it is a copy"):
        signs.opened(claimed(task_on_demand(schedule, "a" * 32)))
    for other in (replace(schedule, name="hourly"), replace(schedule, call=replace(call, payload=PAYLOAD))):
        with pytest.raises(NotGenuine):
            signs.on_demand(other, task_on_demand(other, "a" * 32))


def test_unsigned_is_refused_unless_signatures_are_optional() -> None:
    with pytest.raises(NotGenuine, match="not signed"):
        crypto_with(signing=OLD).opened(claimed(new_task()))
    lenient = crypto_with(signing=Keys({"old": b"o" * 32}, required=False))
    assert lenient.opened(claimed(new_task())) == PAYLOAD
    with pytest.raises(NotGenuine, match="does not fit"):
        lenient.opened(claimed(new_task(headers={SIGNATURE_HEADER: "v1.old.1800000000.AAAA"})))


def test_a_signature_is_made_as_the_docs_say() -> None:
    """Programs in other languages make them by docs/security.md."""
    words = [b"holdfast-signature", b"v1", b"old", b"1800000000", b"mail", b"out", b"a" * 32, PAYLOAD]
    text = b"".join(str(len(word)).encode() + b":" + word for word in words)
    mac = base64.urlsafe_b64encode(hmac.digest(b"o" * 32, text, "sha256")).rstrip(b"=").decode()
    headers = {SIGNATURE_HEADER: f"v1.old.1800000000.{mac}"}
    assert crypto_with(signing=OLD).opened(claimed(new_task(headers=headers))) == PAYLOAD


def test_the_same_bytes_of_another_division_are_another_signature() -> None:
    signs = crypto_with(signing=OLD)
    task = signs.task(new_task(type="ab", queue="c"))
    with pytest.raises(NotGenuine):
        signs.opened(claimed(task, type="a", queue="bc"))


# -- encryption --------------------------------------------------------------------------------------------------


def test_encrypted_arguments_are_json_and_tell_nothing() -> None:
    encrypts = crypto_with(encryption=OLD)
    task = encrypts.task(new_task())
    assert is_encrypted(task.payload)
    assert list(json.loads(task.payload)) == ["holdfast:encrypted"]
    assert b"hunter2" not in task.payload
    assert base64.b64encode(b"hunter2").rstrip(b"=") not in task.payload
    assert encrypts.opened(claimed(task)) == PAYLOAD
    assert shown(task.payload) == b'{"encrypted":"%d bytes"}' % len(task.payload)


@pytest.mark.parametrize("change", [{"queue": "elsewhere"}, {"type": "mail.all"}, {"task_id": "b" * 32}], ids=str)
@pytest.mark.parametrize("request_id", [None, "order-1"])
def test_encrypted_arguments_cannot_be_moved_or_copied(change: dict[str, Any], request_id: str | None) -> None:
    """They are signed too, by a key that is derived from that of the encryption."""
    encrypts = crypto_with(encryption=OLD)
    task = encrypts.task(new_task(request_id=request_id))
    with pytest.raises(NotGenuine, match="changed, copied or moved"):
        encrypts.opened(claimed(task, **change))
    with pytest.raises(NotGenuine, match="not signed"):
        encrypts.opened(claimed(task, headers={}))
    with pytest.raises(NotGenuine, match="does not fit"):
        encrypts.opened(claimed(crypto_with(OLD, OLD).task(new_task())))


def test_encrypted_arguments_are_good_for_their_type_and_queue_only() -> None:
    """Also for somebody who has the key for signatures and not the one for encryption."""
    both = crypto_with(NEW, OLD)
    task = both.task(new_task())
    for place in ({"queue": "elsewhere"}, {"type": "mail.all"}):
        moved = crypto_with(NEW).task(new_task(payload=task.payload, **place))
        with pytest.raises(NotGenuine, match="changed, or moved"):
            both.opened(claimed(moved))


def test_every_changed_byte_is_noticed() -> None:
    encrypts = crypto_with(encryption=OLD)
    task = encrypts.task(new_task())
    for place in range(len(b'{"holdfast:encrypted":"'), len(task.payload) - 2):
        letter = b"A" if task.payload[place : place + 1] != b"A" else b"B"
        changed = task.payload[:place] + letter + task.payload[place + 1 :]
        with pytest.raises((NotGenuine, UnknownKey)):
            encrypts.opened(claimed(task, payload=changed))


def test_unencrypted_is_refused_unless_that_is_optional() -> None:
    with pytest.raises(NotGenuine, match="unencrypted"):
        crypto_with(encryption=OLD).opened(claimed(new_task()))
    assert crypto_with(encryption=Keys({"a": b"a" * 32}, required=False)).opened(claimed(new_task())) == PAYLOAD


def test_equal_arguments_look_different_unless_a_repeat_must_be_known() -> None:
    encrypts = crypto_with(encryption=OLD)
    assert encrypts.task(new_task()).payload != encrypts.task(new_task()).payload
    first, again = (encrypts.task(new_task(request_id="order-1", task_id=number * 32)) for number in "ab")
    assert first.payload == again.payload
    assert encrypts.task(new_task(request_id="order-1", payload=b"{}")).payload != first.payload
    assert encrypts.task(new_task(request_id="order-1", queue="other")).payload != first.payload


def nonce_of(payload: bytes) -> bytes:
    """The first 12 bytes of what was encrypted."""
    (text,) = json.loads(payload).values()
    encrypted = text.rpartition(".")[2]
    return base64.urlsafe_b64decode(encrypted + "=" * (-len(encrypted) % 4))[:12]


def test_different_data_about_the_same_thing_has_different_nonces() -> None:
    """Two messages under one nonce and key give each other away, and let anyone make up more of them."""
    crypto = crypto_with(encryption=NEW)
    data = [b'{"number":1}', b'{"number":2}', b'{"number":10}']
    made = {
        "arguments": [crypto.task(new_task(request_id="r", payload=each)).payload for each in data],
        "calls": [
            crypto.call(ScheduledCall(type="mail", payload=each), "nightly", EVERY_MINUTE).payload for each in data
        ],
        "results": [crypto.result(claimed(new_task()), each) for each in data],
        "memos": [crypto.kept("key", each) for each in data],
    }
    for what, payloads in made.items():
        assert len({nonce_of(payload) for payload in payloads}) == len(data), what
    # The same data twice, and only that, may look the same: that is how a repeat is known.
    assert crypto.kept("key", data[0]) == made["memos"][0]


def test_a_result_belongs_to_its_task() -> None:
    encrypts = crypto_with(encryption=OLD)
    run = claimed(new_task())
    result = encrypts.result(run, b'"hunter2"')
    task = Task(
        task_id=run.task_id,
        type=run.type,
        queue=run.queue,
        state=State.SUCCEEDED,
        priority=0,
        attempt=1,
        deliveries=1,
        created_at_ms=0,
        run_at_ms=0,
    )
    assert b"hunter2" not in result
    assert encrypts.opened_result(task, result) == b'"hunter2"'
    with pytest.raises(NotGenuine):
        encrypts.opened_result(replace(task, task_id="b" * 32), result)
    with pytest.raises(NotGenuine):
        encrypts.opened(claimed(new_task(payload=result)))


def test_a_kept_value_belongs_to_its_key() -> None:
    encrypts = crypto_with(encryption=OLD)
    kept = encrypts.kept("charge-1", b"42")
    assert encrypts.opened_kept("charge-1", kept) == b"42"
    with pytest.raises(NotGenuine):
        encrypts.opened_kept("charge-2", kept)


def test_what_grows_over_the_limit_is_refused_where_it_is_made() -> None:
    with pytest.raises(PayloadTooLarge, match="when encrypted"):
        crypto_with(encryption=OLD).task(new_task(payload=b'{"x":"%b"}' % (b"y" * 9_900)))


def test_both_at_once() -> None:
    both = crypto_with(OLD, NEW)
    task = both.task(new_task())
    assert both.opened(claimed(task)) == PAYLOAD
    with pytest.raises(NotGenuine, match="signature"):
        both.opened(claimed(task, payload=both.task(new_task()).payload))


# -- keys --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["signing", "encryption"])
def test_keys_are_changed_without_a_break(use: str) -> None:
    before, after = crypto_with(**{use: OLD}), crypto_with(**{use: NEW})
    assert after.opened(claimed(before.task(new_task()))) == PAYLOAD
    with pytest.raises(UnknownKey, match="'new'; this process has old"):
        before.opened(claimed(after.task(new_task())))


def test_a_repeat_after_a_change_of_keys_is_the_same() -> None:
    before, after = crypto_with(encryption=OLD), crypto_with(encryption=NEW)
    encrypted = before.task(new_task(request_id="order-1"))
    known = Task(
        task_id=encrypted.task_id,
        type=encrypted.type,
        queue=encrypted.queue,
        state=State.READY,
        priority=0,
        attempt=0,
        deliveries=0,
        created_at_ms=0,
        run_at_ms=0,
        payload=encrypted.payload,
    )
    assert after.is_same(known, PAYLOAD)
    assert not after.is_same(known, b"{}")
    assert not crypto_with(encryption=Keys({"third": b"t" * 32})).is_same(known, PAYLOAD)


def test_keys_from_text() -> None:
    key = base64.b64encode(b"k" * 32).decode()
    found = parse_keys(f"sign:a={key}, encrypt:b={key}\n# a comment\nsign:c={key}")
    assert (found["sign"].current_id, found["encrypt"].current_id) == ("a", "b")
    assert found["sign"].get("c", "it") == b"k" * 32
    assert found["sign"].required
    assert not parse_keys(f"optional,sign:a={key}")["sign"].required
    assert parse_keys("") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hunter2", "entry 1 is refused"),
        ("sign:hunter2", "entry 1 is refused"),
        ("wrap:a=hunter2", "entry 1 is refused"),
        ("sign:a=hunter2", "not base64"),
        ("sign:a=aHVudGVyMg==", "32 bytes"),
        ("sign:a.b=" + "A" * 43 + "=", "the id 'a.b'"),
        ("sign:a=" + "A" * 43 + "=,sign:a=" + "A" * 43 + "=", "twice"),
    ],
)
def test_wrong_keys_are_refused_without_being_told(text: str, words: str) -> None:
    with pytest.raises(BadOption, match=words) as caught:
        parse_keys(text)
    assert "hunter2" not in str(caught.value)
    assert "aHVu" not in str(caught.value)


def test_keys_do_not_show_themselves() -> None:
    keys = Keys({"a": b"hunter2!" * 4})
    assert "hunter2" not in repr(keys)
    with pytest.raises(UnknownKey) as caught:
        keys.get("b", "it")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("use", ["signing", "encryption"])
def test_a_protected_schedule_is_not_changed_by_those_without_keys(use: str) -> None:
    call = crypto_with(**{use: OLD}).call(
        ScheduledCall(type="mail", queue="out", payload=PAYLOAD), "nightly", EVERY_MINUTE
    )
    assert changed_call(call, priority=5).priority == 5
    for change in ({"queue": "other"}, {"payload": b"{}"}):
        with pytest.raises(BadSchedule, match="signed or encrypted"):
            changed_call(call, **change)
    schedule = Schedule(name="nightly", timing=EVERY_MINUTE, call=call)
    jittered = rescheduling.edited(schedule, Timing(every_ms=60_000, jitter_ms=10), call, NOW_MS)
    assert jittered.timing.jitter_ms == 10
    for timing in (Timing(every_ms=1_000), Timing(cron="* * * * *"), Timing(every_ms=60_000, overlap=Overlap.QUEUE)):
        with pytest.raises(BadSchedule, match="change them by the app that has the keys"):
            rescheduling.edited(schedule, timing, call, NOW_MS)
        with pytest.raises(BadSchedule, match="change them by the app that has the keys"):
            rescheduling.begun(replace(schedule, timing=timing), NOW_MS)
