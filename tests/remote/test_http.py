"""Answers in HTTP/1.1, whole, in pieces, in chunks, and such as are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.remote import http
from holdfast.stores.remote.http import MAX_HEAD_BYTES, Answer, AnswerReader, BadAnswer, EndedEarly, request

SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A:  b \r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;name=value\r\nllo\r\n0\r\nTrailer: x\r\n\r\n"
)
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
WHOLE = {"sized": SIZED, "chunked": CHUNKED, "continued": CONTINUED}


def read(data: bytes) -> Answer | None:
    return AnswerReader().feed(data)


def test_a_request_is_one_text_with_its_length() -> None:
    text = request("POST", "/v1/store/get?partition=1", b"host: h\r\n", b"{}")
    assert text == b"POST /v1/store/get?partition=1 HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n{}"


@pytest.mark.parametrize("data", WHOLE.values(), ids=WHOLE.keys())
def test_an_answer_is_read(data: bytes) -> None:
    answer = read(data)
    assert answer is not None
    assert (answer.status, answer.body, answer.keeps) == (200, b"hello", True)


def test_headers_are_found_by_lower_case_names() -> None:
    answer = read(SIZED)
    assert answer is not None
    assert answer.headers == {"content-length": "5", "x-a": "b"}


@given(st.sampled_from(list(WHOLE.values())), st.lists(st.integers(1, 12), max_size=30))
def test_an_answer_is_the_same_in_any_pieces(data: bytes, sizes: list[int]) -> None:
    reader = AnswerReader()
    for size in sizes:
        piece, data = data[:size], data[size:]
        if not piece or not data:
            data = piece + data
            break
        assert reader.feed(piece) is None
    answer = reader.feed(data)
    assert answer is not None
    assert (answer.status, answer.body, answer.keeps) == (200, b"hello", True)


def test_an_answer_without_a_body_ends_with_its_head() -> None:
    answer = read(EMPTY)
    assert answer is not None
    assert (answer.status, answer.body, answer.keeps) == (204, b"", True)


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    reader = AnswerReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\n\r\nhel") is None
    assert reader.feed(b"lo") is None
    answer = reader.end()
    assert (answer.body, answer.keeps) == (b"hello", False)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        SIZED + b"HTTP/1.1 200 OK\r\n",  # what nobody asked for
    ],
    ids=["said so", "old", "too much"],
)
def test_a_connection_is_not_used_again(data: bytes) -> None:
    answer = read(data)
    assert answer is not None
    assert (answer.body, answer.keeps) == (b"hello", False)


@pytest.mark.parametrize("data", WHOLE.values(), ids=WHOLE.keys())
def test_an_answer_that_is_cut_off_is_none(data: bytes) -> None:
    for size in range(len(data)):
        reader = AnswerReader()
        assert not size or reader.feed(data[:size]) is None
        with pytest.raises(EndedEarly) as caught:
            reader.end()
        assert caught.value.nothing_came == (size == 0)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1  20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;" + b"5" * (MAX_HEAD_BYTES + 1),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"F" * 21 + b"\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (MAX_HEAD_BYTES + 1),
    ],
    ids=lambda data: str(data[:60]),
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        read(data)


@pytest.mark.parametrize(
    "head",
    [b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFF", b"Content-Encoding: identity\r\n"],
    ids=["chunked", "until end"],
)
def test_an_answer_of_unknown_length_is_bounded(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 8)
    reader = AnswerReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n12345678") is None
    with pytest.raises(BadAnswer, match="an answer without end"):
        reader.feed(b"9")


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_an_answer_or_refused(data: bytes, is_http: bool) -> None:
    reader = AnswerReader()
    try:
        answer = reader.feed(b"HTTP/1.1 200 " + data if is_http else data) or reader.end()
    except (BadAnswer, EndedEarly):
        return
    assert 100 <= answer.status <= 999
