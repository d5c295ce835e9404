"""Just enough of PostgreSQL's protocol to see where a request or a reply ends.

A request ends with Query or Sync, a reply with ReadyForQuery. What the client must answer before that, or what tells
that the connection is about to end, is passed on at once.
"""

from __future__ import annotations

import re
import struct
from typing import ClassVar, Final

from tests.servers.wire import Reply

_ENCRYPTION_CODES: Final = frozenset({80877103, 80877104})
_CANCEL_CODE: Final = 80877102
_HEAD: Final = struct.Struct("!cI")
_FIRST_HEAD: Final = struct.Struct("!II")
#: Notifications, notices and settings, which may come at any time.
_BY_ITSELF: Final = frozenset(b"ANS")
#: Authentication, the versions of the protocol, and the beginnings of COPY: the client has something to say now.
_CLIENT_IS_NEXT: Final = frozenset(b"RvGHW")
_FUNCTION: Final = re.compile(rb"(?:\b[a-z_][a-z0-9_]*|\"[^\"]+\")\.([a-z_][a-z0-9_]*)\(")
_WORD: Final = re.compile(rb"\w+")


class PostgresWire:
    """One connection to a PostgreSQL server, not encrypted.

    The command of a request is the name of the first function that is called with its schema (`enqueue` for `SELECT *
    FROM holdfast.enqueue(…)`), otherwise the first word of the statement (`COMMIT`).
    """

    handshake: ClassVar = frozenset({"STARTUP", "ENCRYPTION", "SELECT", "SET", "SHOW", "LISTEN"})

    def __init__(self) -> None:
        self.is_stream = False
        self._sent = bytearray()
        self._received = bytearray()
        #: How much of what was received belongs to a reply that has not ended.
        self._position = 0
        self._has_begun = False
        self._awaits_byte = False
        self._statement: bytes | None = None

    def requests(self, data: bytes) -> list[str]:
        """The commands that these bytes complete."""
        self._sent += data
        commands: list[str] = []
        while (message := self._next_sent()) is not None:
            commands += self._command(message)
        return commands

    def replies(self, data: bytes) -> list[Reply]:
        """The replies that these bytes complete."""
        self._received += data
        replies: list[Reply] = []
        while self._received and self._awaits_byte:
            self._awaits_byte = False
            replies.append(self._cut(1, is_answer=True))
        while (length := _message_length(self._received, self._position)) is not None:
            begins, self._position = self._position, self._position + length
            kind = self._received[begins]
            if kind == ord("Z"):
                replies.append(self._cut(self._position, is_answer=True))
            elif (begins == 0 and kind in _BY_ITSELF) or kind in _CLIENT_IS_NEXT or self._is_the_end(begins):
                replies.append(self._cut(self._position, is_answer=False))
        return replies

    # -- requests -------------------------------------------------------------------------------------------

    def _next_sent(self) -> bytes | None:
        """The next whole message of the client, with its type; the first ones have none."""
        if self._has_begun:
            length = _message_length(self._sent, 0)
        else:
            length = _FIRST_HEAD.unpack_from(self._sent)[0] if len(self._sent) >= _FIRST_HEAD.size else None
        if length is None or len(self._sent) < length:
            return None
        message = bytes(self._sent[:length])
        del self._sent[:length]
        return message if self._has_begun else b"\0" + message

    def _command(self, message: bytes) -> list[str]:
        kind, body = message[:1], message[_HEAD.size :]
        if kind == b"\0":
            return self._first_command(int.from_bytes(body[:4]))
        if kind == b"Q":
            return [_name(body)]
        if kind == b"P" and self._statement is None:
            self._statement = body.partition(b"\0")[2]
        if kind == b"S":
            statement, self._statement = self._statement, None
            return [_name(statement) if statement is not None else "EXECUTE"]
        return []

    def _first_command(self, code: int) -> list[str]:
        if code in _ENCRYPTION_CODES:
            self._awaits_byte = True
            return ["ENCRYPTION"]
        if code == _CANCEL_CODE:
            self.is_stream = True
            return []
        self._has_begun = True
        return ["STARTUP"]

    # -- replies --------------------------------------------------------------------------------------------

    def _cut(self, end: int, *, is_answer: bool) -> Reply:
        reply = Reply(bytes(self._received[:end]), is_answer)
        del self._received[:end]
        self._position = 0
        return reply

    def _is_the_end(self, begins: int) -> bool:
        if self._received[begins] != ord("E"):
            return False
        severity = bytes(self._received[begins + _HEAD.size : self._position])
        return b"VFATAL\0" in severity or b"VPANIC\0" in severity


def _message_length(buffer: bytearray, begins: int) -> int | None:
    """The length of the message that begins here, if all of it is there."""
    if len(buffer) < begins + _HEAD.size:
        return None
    length = int(_HEAD.unpack_from(buffer, begins)[1]) + 1
    return length if len(buffer) >= begins + length else None


def _name(statement: bytes) -> str:
    if found := _FUNCTION.search(statement):
        return found[1].decode()
    word = _WORD.search(statement)
    return word[0].decode().upper() if word else ""
