"""Signed and encrypted arguments: without a worker."""

from __future__ import annotations

import base64
import hmac
import json
import os
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Keys
from holdfast.core.definition import changed_call
from holdfast.core.keys import parse_keys
from holdfast.core.policy import DEFAULT_POLICY
from holdfast.core.schedule import Call
from holdfast.core.sealing import SIGNATURE_HEADER, Sealing, is_sealed, shown
from holdfast.core.task import Claimed, NewTask, State, Task
from holdfast.errors import BadOption, BadSchedule, NotGenuine, PayloadTooLarge, UnknownKey

OLD, NEW = Keys({"old": b"o" * 32}), Keys({"new": b"n" * 32, "old": b"o" * 32})
PAYLOAD = b'{"to":"ann@example.com","password":"hunter2"}'


def sealing(signing: Keys | None = None, encryption: Keys | None = None) -> Sealing:
    return Sealing(signing, encryption, 10_000, os.urandom)


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
        "created_at_ms": 0,
        "claimed_at_ms": 0,
    }
    return Claimed(**{**plain, **fields})


# -- signatures --------------------------------------------------------------------------------------------------


def test_a_signed_task_is_opened_and_its_arguments_stay_readable() -> None:
    signs = sealing(signing=OLD)
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
        {"headers": {SIGNATURE_HEADER: "v1.old.AAAA"}},
        {"headers": {SIGNATURE_HEADER: "v2.old.AAAA"}},
        {"headers": {SIGNATURE_HEADER: "v1.old."}},
        {"headers": {SIGNATURE_HEADER: "v1.old.é"}},
    ],
    ids=str,
)
def test_what_was_changed_or_moved_is_refused(change: dict[str, Any]) -> None:
    signs = sealing(signing=OLD)
    with pytest.raises(NotGenuine, match="does not fit"):
        signs.opened(claimed(signs.task(new_task()), **change))


def test_a_task_of_a_schedule_cannot_pass_for_another_nor_another_for_it() -> None:
    signs = sealing(signing=OLD)
    call = signs.call(Call(type="mail", queue="out", payload=PAYLOAD))
    assert signs.opened(claimed(new_task(headers=call.headers))) == PAYLOAD
    assert signs.opened(claimed(new_task(headers=call.headers, task_id="c" * 32))) == PAYLOAD
    forged = signs.task(new_task()).headers[SIGNATURE_HEADER].replace("v1", "s1")
    with pytest.raises(NotGenuine, match="does not fit"):
        signs.opened(claimed(new_task(headers={SIGNATURE_HEADER: forged})))


def test_unsigned_is_refused_unless_signatures_are_optional() -> None:
    with pytest.raises(NotGenuine, match="not signed"):
        sealing(signing=OLD).opened(claimed(new_task()))
    lenient = sealing(signing=Keys({"old": b"o" * 32}, required=False))
    assert lenient.opened(claimed(new_task())) == PAYLOAD
    with pytest.raises(NotGenuine, match="does not fit"):
        lenient.opened(claimed(new_task(headers={SIGNATURE_HEADER: "v1.old.AAAA"})))


def test_a_signature_is_made_as_the_docs_say() -> None:
    """Programs in other languages make them by docs/security.md."""
    words = [b"holdfast-signature", b"v1", b"old", b"mail", b"out", b"a" * 32, PAYLOAD]
    text = b"".join(str(len(word)).encode() + b":" + word for word in words)
    mac = base64.urlsafe_b64encode(hmac.digest(b"o" * 32, text, "sha256")).rstrip(b"=").decode()
    assert sealing(signing=OLD).opened(claimed(new_task(headers={SIGNATURE_HEADER: f"v1.old.{mac}"}))) == PAYLOAD


def test_the_same_bytes_of_another_division_are_another_signature() -> None:
    signs = sealing(signing=OLD)
    task = signs.task(new_task(type="ab", queue="c"))
    with pytest.raises(NotGenuine):
        signs.opened(claimed(task, type="a", queue="bc"))


# -- encryption --------------------------------------------------------------------------------------------------


def test_encrypted_arguments_are_json_and_tell_nothing() -> None:
    encrypts = sealing(encryption=OLD)
    task = encrypts.task(new_task())
    assert is_sealed(task.payload)
    assert list(json.loads(task.payload)) == ["holdfast:sealed"]
    assert b"hunter2" not in task.payload
    assert base64.b64encode(b"hunter2").rstrip(b"=") not in task.payload
    assert encrypts.opened(claimed(task)) == PAYLOAD
    assert shown(task.payload) == b'{"encrypted":"%d bytes"}' % len(task.payload)


@pytest.mark.parametrize("change", [{"queue": "elsewhere"}, {"type": "mail.all"}], ids=str)
def test_encrypted_arguments_cannot_be_moved(change: dict[str, Any]) -> None:
    encrypts = sealing(encryption=OLD)
    with pytest.raises(NotGenuine, match="changed, or moved"):
        encrypts.opened(claimed(encrypts.task(new_task()), **change))


def test_every_changed_byte_is_noticed() -> None:
    encrypts = sealing(encryption=OLD)
    task = encrypts.task(new_task())
    for place in range(len(b'{"holdfast:sealed":"'), len(task.payload) - 2):
        letter = b"A" if task.payload[place : place + 1] != b"A" else b"B"
        changed = task.payload[:place] + letter + task.payload[place + 1 :]
        with pytest.raises((NotGenuine, UnknownKey)):
            encrypts.opened(claimed(task, payload=changed))


def test_unencrypted_is_refused_unless_that_is_optional() -> None:
    with pytest.raises(NotGenuine, match="unencrypted"):
        sealing(encryption=OLD).opened(claimed(new_task()))
    assert sealing(encryption=Keys({"a": b"a" * 32}, required=False)).opened(claimed(new_task())) == PAYLOAD


def test_equal_arguments_look_different_unless_a_repeat_must_be_known() -> None:
    encrypts = sealing(encryption=OLD)
    assert encrypts.task(new_task()).payload != encrypts.task(new_task()).payload
    first, again = (encrypts.task(new_task(request_id="order-1", task_id=number * 32)) for number in "ab")
    assert first.payload == again.payload
    assert encrypts.task(new_task(request_id="order-1", payload=b"{}")).payload != first.payload
    assert encrypts.task(new_task(request_id="order-1", queue="other")).payload != first.payload


def test_a_result_belongs_to_its_task() -> None:
    encrypts = sealing(encryption=OLD)
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
    encrypts = sealing(encryption=OLD)
    kept = encrypts.kept("charge-1", b"42")
    assert encrypts.opened_kept("charge-1", kept) == b"42"
    with pytest.raises(NotGenuine):
        encrypts.opened_kept("charge-2", kept)


def test_what_grows_over_the_limit_is_refused_where_it_is_made() -> None:
    with pytest.raises(PayloadTooLarge, match="when encrypted"):
        sealing(encryption=OLD).task(new_task(payload=b'{"x":"%b"}' % (b"y" * 9_900)))


def test_both_at_once() -> None:
    both = sealing(OLD, NEW)
    task = both.task(new_task())
    assert both.opened(claimed(task)) == PAYLOAD
    with pytest.raises(NotGenuine, match="signature"):
        both.opened(claimed(task, payload=both.task(new_task()).payload))


# -- keys --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["signing", "encryption"])
def test_keys_are_changed_without_a_break(use: str) -> None:
    before, after = sealing(**{use: OLD}), sealing(**{use: NEW})
    assert after.opened(claimed(before.task(new_task()))) == PAYLOAD
    with pytest.raises(UnknownKey, match="'new'; this process has old"):
        before.opened(claimed(after.task(new_task())))


def test_a_repeat_after_a_change_of_keys_is_the_same() -> None:
    before, after = sealing(encryption=OLD), sealing(encryption=NEW)
    sealed = before.task(new_task(request_id="order-1"))
    known = Task(
        task_id=sealed.task_id,
        type=sealed.type,
        queue=sealed.queue,
        state=State.READY,
        priority=0,
        attempt=0,
        deliveries=0,
        created_at_ms=0,
        run_at_ms=0,
        payload=sealed.payload,
    )
    assert after.is_same(known, PAYLOAD)
    assert not after.is_same(known, b"{}")
    assert not sealing(encryption=Keys({"third": b"t" * 32})).is_same(known, PAYLOAD)


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
        ("seal:a=hunter2", "entry 1 is refused"),
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
def test_a_sealed_schedule_is_not_changed_by_those_without_keys(use: str) -> None:
    call = sealing(**{use: OLD}).call(Call(type="mail", queue="out", payload=PAYLOAD))
    assert changed_call(call, priority=5).priority == 5
    for change in ({"queue": "other"}, {"payload": b"{}"}):
        with pytest.raises(BadSchedule, match="signed or encrypted"):
            changed_call(call, **change)
