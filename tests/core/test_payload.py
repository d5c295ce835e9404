from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.payload import MAX_BYTES, MAX_DEPTH, check, depth, encode
from holdfast.errors import BadArguments, PayloadTooDeep, PayloadTooLarge

texts = st.text() | st.sampled_from(['"', "\\", '\\"', "[[[", "{[", '"]}', '\\\\"[', '\n"[', "\\n", '""', "\x01\xff"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=30,
)


def naive_depth(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max((naive_depth(item) for item in value), default=0)
    if isinstance(value, dict):
        return 1 + max((naive_depth(item) for item in value.values()), default=0)
    return 0


def nested(levels: int) -> Any:
    value: Any = 0
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


@given(json_values)
def test_depth_is_what_walking_the_value_gives(value: Any) -> None:
    assert depth(encode(value, "value")) == naive_depth(value)
    assert depth(json.dumps(value, indent=1).encode()) == naive_depth(value)


@given(json_values)
def test_what_is_encoded_reads_back_as_the_same(value: Any) -> None:
    assert json.loads(encode(value, "value")) == value


@given(st.integers(0, MAX_DEPTH + 6))
def test_exactly_the_limit_of_depth_is_allowed(levels: int) -> None:
    if levels <= MAX_DEPTH:
        encode(nested(levels), "arguments of f")
    else:
        with pytest.raises(PayloadTooDeep, match=f"^arguments of f: nested {levels} levels deep, the limit is 64"):
            encode(nested(levels), "arguments of f")


def test_many_brackets_side_by_side_are_not_depth() -> None:
    encode([[] for _ in range(1_000)], "value")
    encode("[" * 1_000, "value")


@pytest.mark.parametrize("levels", [5_000, 100_000])
def test_absurd_depth_is_refused_and_not_a_crash(levels: int) -> None:
    with pytest.raises(PayloadTooDeep, match=r"^value: nested"):
        encode(nested(levels), "value")


@given(st.integers(2, 200), st.integers(2, 200))
def test_exactly_the_limit_of_size_is_allowed(size: int, limit: int) -> None:
    text = "x" * (size - 2)
    if size <= limit:
        assert len(encode(text, "value", limit)) == size
    else:
        with pytest.raises(PayloadTooLarge, match=f"{size:,} bytes of JSON, the limit is {limit:,}"):
            encode(text, "value", limit)


def test_the_default_limit_is_256_kib() -> None:
    check(b" " * MAX_BYTES, "value")
    with pytest.raises(PayloadTooLarge, match=r"262,145 bytes.*262,144"):
        check(b" " * (MAX_BYTES + 1), "value")


@pytest.mark.parametrize("wrong", [object(), {1, object()}, lambda: None, {"a": object()}, "\ud800", 1j, {(1, 2): 3}])
def test_what_json_cannot_say_is_refused_in_one_line(wrong: object) -> None:
    with pytest.raises(BadArguments, match=r"^arguments of f: cannot be written as JSON: ") as caught:
        encode(wrong, "arguments of f")
    assert "\n" not in str(caught.value)
