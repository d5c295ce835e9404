"""What looks like a secret is left out of what is shown: by the names of values in data, by its form in text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from holdfast.security.tokens import without_tokens

HIDDEN: Final = "***"
#: In a name, wherever they stand.
_STEMS: Final = (
    "passw",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "accesskey",
    "privatekey",
    "credential",
    "authoriz",
)
#: In a name, as a word of it: `auth_header` and `authHeader`, not `author`.
_WORDS: Final = frozenset({
    *("auth", "bearer", "cookie", "cookies", "csrf", "jwt", "key", "keys", "otp", "pass", "pin", "pwd"),
    *("session", "sid", "signature", "card", "cards", "cvc", "cvv", "iban", "ssn"),
})  # fmt: skip
#: What an error begins with says what it is, as `KeyError: 'width'` does.
_CLASSES: Final = ("Error", "Exception")
_BOUNDARY = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_LETTERS = re.compile(r"[^a-z0-9]+")
# All with bounds: texts come from untrusted sources, and must not take long to read.
_URL_LOGIN = re.compile(
    r"(\b[a-z][a-z0-9+.-]{1,20}+://)"
    r"(?![^\s/@\"':]{0,100}:\*\*\*@)"  # one whose password is hidden already keeps its user
    r"[^\s/@\"']{1,500}@",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic)\s{1,3}[^\s\"',;]+", re.IGNORECASE)
_NAMED = re.compile(
    r"(?<![A-Za-z0-9_.-])(?P<name>[A-Za-z][A-Za-z0-9_.-]{0,300}+)"
    r"\\{0,7}[\"']?\s{0,3}+(?:=>|[=:])\s{0,3}+(?=[^\s,;&)}\]])"
)
#: Quoted, quoted within quotes, or a word.
_VALUE = re.compile(r"\"[^\"]{0,2000}\"?|'[^']{0,2000}'?|\\{1,7}\"[^\"]{0,2000}\"?|[^\s,;&)}\]\"']+")
#: `--password hunter2`, also as a list of words.
_OPTION = re.compile(
    r"(?<![\w-])--?(?P<name>[A-Za-z][A-Za-z0-9_.-]{0,80}+)(?:[\"'],?)?\s{1,3}[\"']?(?P<value>[^\s\"',-][^\s\"',]*)"
)
_TAG = re.compile(r"<(?P<name>[A-Za-z][A-Za-z0-9_.:-]{0,80}+)>(?P<value>[^<]{1,2000}+)")
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)[^-]{1,20000}+")
#: Of an object that is a name and its value.
_NAMES: Final = ("name", "key", "header", "field")


def is_secret(name: str) -> bool:
    """Whether a value of this name is a secret."""
    letters = _LETTERS.sub("", name.lower())
    return any(stem in letters for stem in _STEMS) or any(word.lower() in _WORDS for word in _BOUNDARY.split(name))


#: The names in texts are short, and mostly the same.
_is_secret_word = lru_cache(1_024)(is_secret)


def redacted_json(data: bytes | None) -> bytes | None:
    """The same JSON, the values of secret-looking names replaced; what is no JSON is not shown at all."""
    if data is None:
        return None
    try:
        return msgspec.json.encode(_without_secrets(msgspec.json.decode(data)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.encode(HIDDEN)


def redacted_text(text: str) -> str:
    """The text without passwords in URLs, tokens, and values that are given a secret-looking name."""
    # Every log line comes through here, and few of them have what the patterns look for.
    text = without_tokens(text)
    if "@" in text:
        text = _URL_LOGIN.sub(rf"\1{HIDDEN}@", text)
    if "--" in text:
        text = _OPTION.sub(_without_value, _PRIVATE_KEY.sub(rf"\1{HIDDEN}", text))
    if "</" in text:
        text = _TAG.sub(_without_value, text)
    lowered = text.lower()
    if "bearer" in lowered or "basic" in lowered:
        text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    return _without_named(text) if "=" in text or ":" in text else text


def redacted_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers of a task, the values of secret-looking names replaced."""
    return {name: HIDDEN if is_secret(name) else redacted_text(value) for name, value in headers.items()}


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        named = any(isinstance(name := value.get(each), str) and is_secret(name) for each in _NAMES)
        return {
            name: HIDDEN if is_secret(name) or (named and name not in _NAMES) else _without_secrets(each)
            for name, each in value.items()
        }
    if isinstance(value, list):
        if len(value) == 2 and isinstance(value[0], str) and is_secret(value[0]):
            return [value[0], HIDDEN]
        return [_without_secrets(each) for each in value]
    return redacted_text(value) if isinstance(value, str) else value


def _without_value(found: re.Match[str]) -> str:
    """What was found; of a secret-looking name, without its value."""
    if not _is_secret_word(found["name"]):
        return found[0]
    start, end = found.start("value") - found.start(), found.end("value") - found.start()
    return f"{found[0][:start]}{HIDDEN}{found[0][end:]}"


def _without_named(text: str) -> str:
    """The text without values of secret-looking names; a value may itself be a name with a value."""
    parts: list[str] = []
    place = kept = 0
    while found := _NAMED.search(text, place):
        place = found.end()
        if not _is_secret_word(found["name"]) or found["name"].endswith(_CLASSES):
            continue
        value = _VALUE.match(text, place)
        if value is not None:
            parts += (text[kept:place], HIDDEN)
            place = kept = value.end()
    return "".join([*parts, text[kept:]])
