"""What scopes allow, how rates are kept, what tokens look like: without a server."""

from __future__ import annotations

import re

import pytest

from holdfast.errors import BadOption
from holdfast.security import tokens as access
from holdfast.security.scopes import OF_QUEUES, Scope, Scopes, parse_scope
from holdfast.security.tokens import AccessToken, Bucket, Rate


def test_a_scope_is_for_its_queue_only() -> None:
    scopes = Scopes(["enqueue:images", "work:mail*"])
    assert scopes.may(Scope.ENQUEUE, "images")
    assert not scopes.may(Scope.ENQUEUE, "images2")
    assert not scopes.may(Scope.ENQUEUE, "mail")
    assert not scopes.may(Scope.WORK, "images")
    assert scopes.may(Scope.WORK, "mail")
    assert scopes.may(Scope.WORK, "mail-outgoing")
    assert not scopes.may(Scope.WORK, "mai")
    assert not scopes.may(Scope.WORK, "xmail")


def test_without_a_queue_any_of_them_counts() -> None:
    scopes = Scopes(["enqueue:images"])
    assert scopes.may(Scope.ENQUEUE)
    assert not scopes.may(Scope.WORK)
    assert not scopes.may_everywhere(Scope.ENQUEUE)
    assert Scopes(["enqueue:*"]).may_everywhere(Scope.ENQUEUE)


def test_admin_is_everything_and_the_others_are_not() -> None:
    admin = Scopes(["admin"])
    assert all(admin.may(scope, "any") and admin.may_everywhere(scope) for scope in Scope)
    allowed = {
        text: {scope for scope in Scope if Scopes([text]).may(scope, "any")}
        for text in ("enqueue:*", "work:*", "read", "manage")
    }
    assert allowed == {
        "enqueue:*": {Scope.ENQUEUE},
        "work:*": {Scope.WORK},
        "read": {Scope.READ},
        "manage": {Scope.MANAGE, Scope.READ},
    }


def test_a_star_in_a_name_is_no_queue_by_itself() -> None:
    assert not Scopes(["work:mail*"]).may(Scope.WORK, "")
    assert not any(Scopes(["read"]).may(scope, "q") for scope in OF_QUEUES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "write enqueue:QUEUE"),
        ("root", "write enqueue:QUEUE"),
        ("ADMIN", "write enqueue:QUEUE"),
        ("enqueue", "enqueue:* for all queues"),
        ("work:", "work:* for all queues"),
        ("read:images", "write read"),
        ("work:a b", "queue name"),
        ("work:*images", "queue name"),
        ("work:a**", "queue name"),
        ("enqueue:" + "x" * 200, "queue name"),
    ],
)
def test_a_wrong_scope_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(BadOption, match=re.escape(words)) as caught:
        parse_scope(text)
    assert "\n" not in str(caught.value)


def test_a_token_is_known_by_its_prefix_and_not_by_what_is_kept() -> None:
    text = access.new_text(b"\x01" * access.ID_BYTES, b"\xfe" * access.SECRET_BYTES)
    assert re.fullmatch(r"hf_[0-9a-f]{12}_[0-9a-f]{64}", str(text))
    assert access.parse_text(str(text)) == text
    assert text.secret not in repr(text)
    kept = AccessToken(digest=access.digest_of(text.secret), scopes=("read",), created_at_ms=1)
    assert text.secret.encode() not in access.write_token(kept)
    assert access.read_token(access.write_token(kept)) == kept
    assert access.fits(kept, text.secret)
    assert not access.fits(kept, "0" * 64)
    assert not access.fits(None, text.secret)


@pytest.mark.parametrize(
    "text", ["", "hf_", "hf_0101_00", "xx_010101010101_" + "0" * 64, "hf_010101010101_" + "0" * 63, "é" * 80]
)
def test_what_is_no_token_is_none(text: str) -> None:
    assert access.parse_text(text) is None


def test_secrets_of_tokens_are_left_out_of_text() -> None:
    text = f"before hf_010101010101_{'a' * 64} after"
    assert access.without_tokens(text) == "before hf_010101010101_*** after"


def test_a_rate_is_spent_and_comes_back() -> None:
    bucket = Bucket(Rate.parse("10/s"), now_ms=0)
    assert [bucket.take(0) for _ in range(11)] == [0] * 10 + [100]
    assert bucket.take(99) == 1
    assert bucket.take(100) == 0
    assert [bucket.take(100_000) for _ in range(11)] == [0] * 10 + [100]


def test_a_rate_that_is_not_used_is_not_saved_up() -> None:
    bucket = Bucket(Rate.parse("2/h"), now_ms=0)
    assert [bucket.take(10 * 3_600_000) for _ in range(3)] == [0, 0, 1_800_000]


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(Rate.parse("1/s"), now_ms=10_000)
    assert bucket.take(10_000) == 0
    assert bucket.take(0) > 0
    assert bucket.take(500) > 0


@pytest.mark.parametrize("text", ["", "10", "10/d", "0/s", "-1/s", "1.5/s", "10/s ", "x/s"])
def test_a_wrong_rate_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadOption, match="write 100/s"):
        Rate.parse(text)


def test_a_rate_is_shown_as_it_is_written() -> None:
    assert [str(Rate.parse(text)) for text in ("100/s", "600/m", "10/h")] == ["100/s", "600/m", "10/h"]


def test_a_scope_for_some_queues_is_not_one_for_all() -> None:
    for text in ("work:mail*", "work:mail"):
        assert not Scopes([text]).may_everywhere(Scope.WORK)
    assert Scopes(["work:*"]).may_everywhere(Scope.WORK)


def test_a_token_is_good_until_the_millisecond_in_which_it_expires() -> None:
    token = AccessToken(digest="", scopes=(), created_at_ms=0, expires_at_ms=10)
    assert [token.has_expired(now_ms) for now_ms in (9, 10, 11)] == [False, True, True]


def test_a_token_does_not_show_its_secret_unless_it_is_printed() -> None:
    token = access.new_text(b"i" * access.ID_BYTES, b"s" * access.SECRET_BYTES)
    assert token.secret not in repr(token)
    assert token.secret not in f"{[token]}"
    assert token.secret in str(token)
