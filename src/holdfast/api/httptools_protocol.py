"""uvicorn's protocol of httptools, made as strict as that of h11.

httptools has no limits of its own, reads the next request while the last one is being answered, takes trailers for
headers, and does not read the body of a request that offers to go on with another protocol.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.api.edge import MAX_HEAD_BYTES
from holdfast.api.slow_clients import Impatient
from holdfast.wire import problems
from holdfast.wire.problems import Kind

#: What says where a body ends.
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})


class _Parser(httptools.HttpRequestParser):
    """Goes on after an offer, where httptools would stop reading."""

    def __init__(self, protocol: ImpatientHttpTools) -> None:
        super().__init__(protocol)
        self._protocol = protocol
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does: it ends the connection itself

    def feed_data(self, data: Any) -> None:
        rest = memoryview(data)
        while True:
            try:
                super().feed_data(rest)
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]
                super().feed_data(self._protocol.head_without_offer())
            else:
                return


class ImpatientHttpTools(Impatient, HttpToolsProtocol):
    """Refuses what has no end, and answers in order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = _Parser(self)
        self._in_head = False
        #: While the head of a request with an offer is read again without it.
        self._declines = False
        #: Whether the last data had more in it than a part of a head or of trailers, and how much had not.
        self._has_moved = False
        self._unmoved_bytes = 0
        #: Requests before the last one that have no answer yet.
        self._earlier = deque[Any]()
        self._refusal: Kind | None = None

    def data_received(self, data: bytes) -> None:
        """Feeds the parser, but not for ever with something that nobody gets to see."""
        if self._refusal is not None:
            return
        self._has_moved = False
        super().data_received(data)
        self._unmoved_bytes = 0 if self._has_moved or self.is_parting else self._unmoved_bytes + len(data)
        if self._unmoved_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.refuse(problems.HEAD_TOO_LARGE)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells everybody who answers; uvicorn tells the last one only."""
        for cycle in self._earlier:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def refuse(self, kind: Kind) -> None:
        """After the answers to what came before: a request that is carried out is not answered with a refusal."""
        if self._earlier or (self.is_answering and not self.cycle.more_body):
            self._refusal = kind
            self.flow.pause_reading()
        else:
            super().refuse(kind)

    # -- what the parser calls --------------------------------------------------------------------------------

    def head_without_offer(self) -> bytes:
        """For a request that offers another protocol, as Java's client does first of all: it is read as any other."""
        self._declines = True
        framing = [b"%b: %b\r\n" % header for header in self.headers if header[0] in _FRAMING]
        return b"".join([b"POST / HTTP/1.1\r\n", *framing, b"\r\n"])

    def on_message_begin(self) -> None:
        """Of a head."""
        self._has_moved = True
        if not self._declines:
            self._in_head = True
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Part of an address."""
        if self._in_head:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Not of the trailers: they come after all checks, and nobody asks for any."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Of a head; the request begins."""
        if self._declines:
            self._declines = False
            return
        self._in_head = False
        self.is_in_body = True
        before = self.cycle
        super().on_headers_complete()
        if before is not None and not before.response_complete:
            self._earlier.append(before)

    def on_body(self, body: bytes) -> None:
        """Part of a body."""
        self._has_moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The whole request is here, unless its body was not read because of an offer."""
        if not self.parser.should_upgrade():
            self.is_in_body = False
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Goes on to the next request, or to the refusal that had to wait."""
        while self._earlier and self._earlier[0].response_complete:
            self._earlier.popleft()
        super().on_response_complete()
        if self._refusal is not None and not self.transport.is_closing():
            self.refuse(self._refusal)
