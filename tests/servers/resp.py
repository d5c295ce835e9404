"""Just enough of Redis's protocol to see where a request or a reply ends."""

from __future__ import annotations

from typing import ClassVar, Final

from tests.servers.wire import Reply

#: Types whose head is followed by so many elements for each one counted.
_AGGREGATES = {b"*": 1, b"~": 1, b">": 1, b"%": 2, b"|": 2}
#: Types whose head is followed by so many bytes.
_BLOBS = {b"$", b"=", b"!"}


#: From here on, replies do not belong to requests any more.
_STREAMS: Final = frozenset({"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR", "SYNC", "PSYNC"})


class RespWire:
    """One connection to a Redis server."""

    handshake: ClassVar = frozenset(
        {"HELLO", "AUTH", "CLIENT", "SELECT", "PING", "READONLY", "COMMAND", "INFO", "CLUSTER", "ROLE", "REPLCONF"}
        | {"ASKING"}
    )

    def __init__(self) -> None:
        self.is_stream = False
        self._requests = Frames()
        self._replies = Frames()

    def requests(self, data: bytes) -> list[str]:
        """The commands that these bytes complete."""
        commands = [command_of(request) for request in self._requests.feed(data)]
        self.is_stream = any(command in _STREAMS for command in commands)
        return commands

    def replies(self, data: bytes) -> list[Reply]:
        """The replies that these bytes complete."""
        return [Reply(frame, not is_push(frame)) for frame in self._replies.feed(data)]


class Frames:
    """Cuts a stream of bytes into whole requests or replies; works on RESP2 and RESP3."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._position = 0
        self._missing = 1

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that these bytes complete, in order."""
        self._buffer += data
        frames = []
        while self._read_element():
            if self._missing == 0:
                frames.append(bytes(self._buffer[: self._position]))
                del self._buffer[: self._position]
                self._position, self._missing = 0, 1
        return frames

    def _read_element(self) -> bool:
        """Steps over one element if all of it is there."""
        line_end = self._buffer.find(b"\r\n", self._position)
        if line_end < 0:
            return False
        kind, count = bytes(self._buffer[self._position : self._position + 1]), 0
        if kind in _BLOBS or kind in _AGGREGATES:
            count = max(int(self._buffer[self._position + 1 : line_end]), 0)
        end = line_end + 2
        if kind in _BLOBS and not self._is_null(line_end):
            end += count + 2
        if end > len(self._buffer):
            return False
        self._position = end
        # Attributes (|) come before the reply that they are about, and are not one themselves.
        self._missing += _AGGREGATES.get(kind, 0) * count - (kind != b"|")
        return True

    def _is_null(self, line_end: int) -> bool:
        return self._buffer[self._position + 1 : line_end] == b"-1"


def is_push(reply: bytes) -> bool:
    """Whether the server sent this by itself, and not as an answer."""
    return reply.startswith(b">")


def command_of(request: bytes) -> str:
    """The first word of a request, in capitals."""
    if not request.startswith(b"*"):
        return request.split(maxsplit=1)[0].decode(errors="replace").upper() if request.strip() else ""
    lines = request.split(b"\r\n", 3)
    return lines[2].decode(errors="replace").upper() if len(lines) > 2 else ""
