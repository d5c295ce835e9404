"""What a proxy must know of a protocol: where a request ends, and where a reply."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol


class Reply(NamedTuple):
    """Bytes from the server that belong together."""

    data: bytes
    #: Whether this ends what one request was waiting for; the rest the server sent by itself, or has more to say.
    is_answer: bool


class Wire(Protocol):
    """One connection: bytes of both sides go in, commands and replies come out."""

    #: What clients send when they connect, or to see whether somebody is there.
    handshake: ClassVar[frozenset[str]]
    #: Whether replies do not belong to requests any more.
    is_stream: bool

    def __init__(self) -> None: ...

    def requests(self, data: bytes) -> list[str]:
        """The commands of the requests that these bytes of the client complete."""
        ...

    def replies(self, data: bytes) -> list[Reply]:
        """The replies that these bytes of the server complete."""
        ...


class AnyWire:
    """Any protocol: bytes pass as they come, and no fault that needs whole replies strikes them."""

    handshake: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self.is_stream = True

    def requests(self, data: bytes) -> list[str]:
        """None is seen."""
        del data
        return []

    def replies(self, data: bytes) -> list[Reply]:
        """All that comes, as it comes."""
        return [Reply(data, is_answer=False)]
