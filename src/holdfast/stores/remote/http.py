"""HTTP/1.1 without any input or output: requests as bytes, and answers from bytes, which h11 parses, within limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import h11

#: The status line and the headers of an answer, together, unless a single read brings all of them.
MAX_HEAD_BYTES: Final = 64 * 1024
#: The largest batch of the largest payloads fits in twice.
MAX_BODY_BYTES: Final = 1024 * 1024 * 1024
_PROTOCOL: Final = b"HTTP/1."
#: h11 reads an answer as that to a request which it knows. All of ours are alike in what matters for this.
_ANY_REQUEST: Final = h11.Request(method="POST", target="/", headers=[("host", "any")])


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
    # Not by h11: it would check the same lines for every request, which takes 20 µs where this takes 0.2.
    head = f"{method} {target} HTTP/1.1\r\n".encode("ascii")
    return b"%b%bcontent-length: %d\r\n\r\n%b" % (head, headers, len(body), body)


def _connection() -> h11.Connection:
    connection = h11.Connection(h11.CLIENT, MAX_HEAD_BYTES)
    connection.send(_ANY_REQUEST)
    return connection


@dataclass(slots=True)
class AnswerReader:
    """Takes bytes as they come, and gives the answer when it is complete; one reader for one answer."""

    _connection: h11.Connection = field(default_factory=_connection)
    _beginning: bytes = b""
    _answer: Answer | None = None
    _body: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Answer | None:
        """The answer if these were its last bytes."""
        if len(self._beginning) < len(_PROTOCOL):
            self._check_beginning(data)
        self._connection.receive_data(data)
        try:
            return self._read()
        except h11.RemoteProtocolError:
            # Its words repeat what came, at any length, and that may be the token.
            raise BadAnswer("malformed HTTP") from None

    def end(self) -> Answer:
        """The answer if the end of the connection is also its own."""
        self._connection.receive_data(b"")
        try:
            answer = self._read()
        except h11.RemoteProtocolError:
            answer = None
        if answer is None:
            raise EndedEarly(nothing_came=not self._beginning)
        return answer

    def _check_beginning(self, data: bytes) -> None:
        """h11 waits for an empty line, which other protocols may never send."""
        self._beginning = (self._beginning + data)[: len(_PROTOCOL)]
        if not _PROTOCOL.startswith(self._beginning):
            raise BadAnswer("no HTTP")

    def _read(self) -> Answer | None:
        while True:
            event = self._connection.next_event()
            if isinstance(event, h11.Data):
                self._take(event.data)
            elif isinstance(event, h11.Response):
                self._begin(event)
            elif isinstance(event, h11.EndOfMessage):
                return self._finished()
            elif not isinstance(event, h11.InformationalResponse):  # the answer comes after "100 Continue" and its like
                return None

    def _begin(self, response: h11.Response) -> None:
        headers: dict[str, str] = {}
        for name, text in response.headers:
            headers.setdefault(name.decode("ascii"), text.decode("latin-1"))
        if headers.get("content-encoding", "identity") != "identity":
            raise BadAnswer("a compressed answer")
        length = headers.get("content-length")
        if length is not None and "transfer-encoding" in headers:
            raise BadAnswer("an answer of unclear length")
        if length is not None and int(length) > MAX_BODY_BYTES:
            raise BadAnswer("an answer that is too long")
        self._answer = Answer(response.status_code, headers)

    def _take(self, data: bytes) -> None:
        if len(self._body) + len(data) > MAX_BODY_BYTES:
            raise BadAnswer("an answer without end")
        self._body += data

    def _finished(self) -> Answer | None:
        answer = self._answer
        if answer is not None:
            answer.body = bytes(self._body)
            # Unexpected bytes after it: the next call on this connection must not take them for its answer.
            unread, ended = self._connection.trailing_data
            answer.keeps = self._connection.their_state is h11.DONE and not unread and not ended
        return answer
