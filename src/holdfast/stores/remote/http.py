"""HTTP/1.1 without any input or output: requests as bytes, and answers from bytes, within limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

#: The status line and the headers of an answer, together.
MAX_HEAD_BYTES: Final = 64 * 1024
#: The largest batch of the largest payloads fits in twice.
MAX_BODY_BYTES: Final = 1024 * 1024 * 1024
_MAX_CHUNK_LINE_BYTES: Final = 1024
_WITHOUT_BODY: Final = frozenset({204, 304})


class BadAnswer(Exception):
    """What came is no answer in HTTP/1.1 that we would read."""


class EndedEarly(Exception):
    """The connection ended before the answer did; `nothing_came` if not even its first byte was there."""

    def __init__(self, nothing_came: bool) -> None:
        super().__init__("the connection ended before the answer")
        self.nothing_came = nothing_came


@dataclass(slots=True)
class Answer:
    """One answer; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    #: Whether the connection can take another request.
    keeps: bool = True


def request(method: str, target: str, headers: bytes, body: bytes = b"") -> bytes:
    """A request; `headers` are whole lines that the caller has checked."""
    head = f"{method} {target} HTTP/1.1\r\n".encode("ascii")
    return b"%b%bcontent-length: %d\r\n\r\n%b" % (head, headers, len(body), body)


@dataclass(slots=True)
class AnswerReader:
    """Takes bytes as they come, and gives the answer when it is complete; one reader for one answer."""

    _buffer: bytearray = field(default_factory=bytearray)
    _answer: Answer | None = None
    _stage: Literal["head", "sized", "chunk_line", "chunk", "trailer", "until_end"] = "head"
    _missing: int = 0
    _body: bytearray = field(default_factory=bytearray)
    _nothing_came: bool = True

    def feed(self, data: bytes) -> Answer | None:
        """The answer if these were its last bytes."""
        self._buffer += data
        self._nothing_came = False
        while True:
            before = self._stage, len(self._buffer)
            done = self._step()
            if done:
                return self._finished()
            if (self._stage, len(self._buffer)) == before:
                return None

    def end(self) -> Answer:
        """The answer if the end of the connection is also its own."""
        if self._stage == "until_end":
            return self._finished()
        raise EndedEarly(self._nothing_came)

    def _step(self) -> bool:
        """One step through the buffer; True at the end of the answer."""
        if self._stage == "head":
            return self._read_head()
        if self._stage == "sized":
            return self._take(self._missing)
        if self._stage == "until_end":
            self._take(len(self._buffer))
            return False
        if self._stage == "chunk":
            return self._read_chunk()
        return self._read_chunk_line() if self._stage == "chunk_line" else self._read_trailer()

    def _finished(self) -> Answer:
        if self._answer is None:
            raise BadAnswer("no answer")
        if self._buffer:
            # Unexpected bytes: the next call on this connection must not take them for its answer.
            self._answer.keeps = False
        self._answer.body = bytes(self._body)
        return self._answer

    # -- the head -------------------------------------------------------------------------------------------

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end > MAX_HEAD_BYTES or (end < 0 and len(self._buffer) > MAX_HEAD_BYTES):
            raise BadAnswer("headers without end")
        if not b"HTTP/1.".startswith(self._buffer[:7]):
            raise BadAnswer("no HTTP")
        if end < 0:
            return False
        head = self._buffer[:end].decode("latin-1")
        del self._buffer[: end + 4]
        status_line, *lines = head.split("\r\n")
        answer = Answer(_status(status_line), _headers(lines))
        if answer.status < 200:
            return False  # "100 Continue" and its like: the answer comes after it.
        answer.keeps = status_line[7] == "1" and answer.headers.get("connection", "").lower() != "close"
        self._answer = answer
        return self._expect_body(answer)

    def _expect_body(self, answer: Answer) -> bool:
        coding, length = answer.headers.get("transfer-encoding"), answer.headers.get("content-length")
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise BadAnswer("a compressed answer")
        if answer.status in _WITHOUT_BODY:
            return True
        if coding is not None:
            if coding.lower() != "chunked" or length is not None:
                raise BadAnswer("an answer of unclear length")
            self._stage = "chunk_line"
        elif length is not None:
            self._stage, self._missing = "sized", _length(length)
        else:
            self._stage, answer.keeps = "until_end", False
        return False

    # -- the body -------------------------------------------------------------------------------------------

    def _take(self, size: int) -> bool:
        """Moves up to `size` bytes into the body; True if all of them were there."""
        if len(self._body) + size > MAX_BODY_BYTES:
            raise BadAnswer("an answer without end")
        taken = self._buffer[:size]
        self._body += taken
        del self._buffer[:size]
        self._missing = size - len(taken)
        return not self._missing

    def _read_chunk_line(self) -> bool:
        line = self._line()
        if line is not None:
            size = line.partition(b";")[0].strip()
            if not size or size.strip(b"0123456789abcdefABCDEF"):
                raise BadAnswer("a chunk without its size")
            self._missing = int(size, 16)
            self._stage = "chunk" if self._missing else "trailer"
        return False

    def _read_chunk(self) -> bool:
        if self._take(self._missing) and len(self._buffer) >= 2:
            if self._buffer[:2] != b"\r\n":
                raise BadAnswer("a chunk that is longer than its size")
            del self._buffer[:2]
            self._stage = "chunk_line"
        return False

    def _read_trailer(self) -> bool:
        return self._line() == b""

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end > _MAX_CHUNK_LINE_BYTES or (end < 0 and len(self._buffer) > _MAX_CHUNK_LINE_BYTES):
            raise BadAnswer("a line without end")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


def _status(line: str) -> int:
    code = line[9:12]
    if line[8:9] != " " or not (code.isascii() and code.isdecimal()) or line[12:13] not in ("", " ") or int(code) < 100:
        raise BadAnswer("no status")
    return int(code)


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, text = line.partition(":")
        name, text = name.lower(), text.strip()
        if not colon or not name or name != name.strip():
            raise BadAnswer("a header without a name")
        if headers.setdefault(name, text) != text and name in {"content-length", "transfer-encoding"}:
            raise BadAnswer("an answer of unclear length")
    return headers


def _length(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 12 or int(text) > MAX_BODY_BYTES:
        raise BadAnswer("a length that cannot be")
    return int(text)
