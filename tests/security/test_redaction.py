"""What is left out of what is shown."""

from __future__ import annotations

import json
import time

import pytest

from holdfast.security.redaction import HIDDEN, is_secret, redacted_headers, redacted_json, redacted_text

SECRET = ["password", "Passwort", "db_password", "user.pass", "apiKey", "API_KEY", "x-api-key", "clientSecret"]
SECRET += ["accessToken", "Authorization", "auth", "authHeader", "Set-Cookie", "session_id", "card_number", "cvv"]
SECRET += ["token", "key"]
PLAIN = ["author", "authority", "passenger", "compass", "monkey", "keyboard", "discard", "spinner", "url", "id"]


@pytest.mark.parametrize("name", SECRET)
def test_secret_names(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", PLAIN)
def test_plain_names(name: str) -> None:
    assert not is_secret(name)


def test_values_are_hidden_however_deep() -> None:
    given = {"user": "ann", "deep": [{"login": {"password": "hunter2", "tries": 3}}], "token": {"any": "thing"}}
    assert json.loads(redacted_json(json.dumps(given).encode()) or b"") == {
        "user": "ann",
        "deep": [{"login": {"password": HIDDEN, "tries": 3}}],
        "token": HIDDEN,
    }


def test_texts_lose_what_has_the_form_of_a_secret() -> None:
    text = (
        "cannot reach postgresql://app:hunter2@db/x or https://hunter3@host, password=hunter4, "
        "'api_key': 'hunter5 hunter6', Authorization: Bearer hunter7, hf_010101010101_" + "e" * 64
    )
    text += " ValueError: password=hunter8; detail: token='hunter9', reason=secret:hunter10"
    shown = redacted_text(text)
    assert "hunter" not in shown
    assert "e" * 64 not in shown
    assert "postgresql://***@db/x" in shown


@pytest.mark.parametrize(
    "text",
    [
        "mysql --password hunter2 --port 3306",
        "['mysql', '--password', 'hunter2']",
        "password => hunter2",
        "<password>hunter2</password>",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----",
        json.dumps(json.dumps({"password": "hunter2"})),
        json.dumps(json.dumps(json.dumps({"password": "hunter2"}))),
        "x" * 90 + "_password=hunter2",
    ],
)
def test_texts_lose_secrets_however_they_are_written(text: str) -> None:
    assert "hunter2" not in redacted_text(text)
    assert HIDDEN in redacted_text(text)


@pytest.mark.parametrize(
    "given", [{"name": "password", "value": "hunter2"}, ["db_password", "hunter2"], {"x": [["token", "hunter2"]]}]
)
def test_values_beside_their_names_are_hidden(given: object) -> None:
    shown = redacted_json(json.dumps(given).encode()) or b""
    assert b"hunter2" not in shown
    assert b"***" in shown


@pytest.mark.parametrize(
    "text", ["-- a comment", "ls -la --width 80 <b>bold</b>", "a -> b -- c", "--- a/x.py", "5 --3"]
)
def test_options_and_tags_that_are_no_secrets_stay(text: str) -> None:
    assert redacted_text(text) == text


def test_texts_without_secrets_stay_as_they_are() -> None:
    text = 'KeyError: "width" in resize(url="https://example.com/cat.jpg", author: Ann) at line 3; 2 < 3'
    assert redacted_text(text) == text


def test_headers_are_hidden_by_name() -> None:
    assert redacted_headers({"authorization": "Bearer x", "trace": "00-ab"}) == {
        "authorization": HIDDEN,
        "trace": "00-ab",
    }


@pytest.mark.parametrize("data", [b"\xff\x00", b"{", b"[" * 5_000, b"not json"])
def test_what_is_no_json_is_not_shown(data: bytes) -> None:
    assert redacted_json(data) == b'"***"'


def test_nothing_stays_nothing() -> None:
    assert redacted_json(None) is None


@pytest.mark.parametrize(
    "part",
    [
        "x",
        "a=",
        "http://",
        "a.b-",
        "bearer ",
        "a='",
        "hf_",
        " ",
        "x://aaaaaaaa",
        "--a ",
        "<a>",
        "</",
        "-----BEGIN PRIVATE KEY-----",
    ],
)
def test_a_long_text_takes_no_longer_than_its_length_allows(part: str) -> None:
    def cost(length: int) -> int:
        text = part * (length // len(part))
        begun = time.thread_time_ns()
        redacted_text(text)
        return time.thread_time_ns() - begun

    short = min(cost(25_000) for _ in range(5))
    assert min(cost(200_000) for _ in range(2)) < 4 * 8 * short  # a quadratic pattern takes 8 x 8 times as long
