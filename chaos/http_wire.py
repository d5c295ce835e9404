"""Just enough of HTTP to see where a request or an answer ends, for clients that ask one thing at a time."""

from __future__ import annotations

import re
from typing import ClassVar, Final

from tests.servers.wire import Reply

from holdfast.stores.remote.http import AnswerReader

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


class HttpWire:
    """One connection to a server; the path of a request is its command."""

    handshake: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self.is_stream = False
        self._request = b""
        self._reply = b""
        self._reader = AnswerReader()

    def requests(self, data: bytes) -> list[str]:
        """The path of the request that these bytes complete."""
        self._request += data
        head, end, body = self._request.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not end or (length and len(body) < int(length[1])):
            return []
        self._request = b""
        return [head.split(b" ", 2)[1].partition(b"?")[0].decode("ascii")]

    def replies(self, data: bytes) -> list[Reply]:
        """The answer that these bytes complete."""
        self._reply += data
        if self._reader.feed(data) is None:
            return []
        reply = Reply(self._reply, is_answer=True)
        self._reply, self._reader = b"", AnswerReader()
        return [reply]
