"""Budgets of one server: memory for bodies and answers, and CPU time between two yields to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Self, TypeVar

from holdfast.server.auth import Denied
from holdfast.stores.remote import problems
from holdfast.stores.remote.limits import SMALL_BODY_BYTES

A = TypeVar("A")
R = TypeVar("R")

#: One chunk; smaller ones would make the work longer, and other requests hardly faster.
PART_BYTES: Final = 64 * 1024
#: A request waits this long for memory, then it is refused.
ROOM_SECONDS: Final = 5.0
#: Further requests are refused at once.
MAX_WAITING_FOR_ROOM: Final = 1_000


# -- CPU time ------------------------------------------------------------------------------------------------------


class CpuSlices:
    """Yields to the event loop between chunks of CPU work."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done = 0

    async def work(self, size_bytes: int, function: Callable[[A], R], argument: A) -> R:
        """The result of a function that works on this many bytes; run in a thread if they are more than a chunk."""
        if size_bytes >= PART_BYTES:
            return await asyncio.to_thread(function, argument)
        result = function(argument)
        await self.after(size_bytes)
        return result

    async def after(self, size_bytes: int) -> None:
        """Called after this much work; yields once a chunk is complete."""
        self._done += size_bytes
        if self._done >= PART_BYTES:
            self._done = 0
            await asyncio.sleep(0)


# -- memory --------------------------------------------------------------------------------------------------------


class Room:
    """A memory budget in bytes for all requests together, at most half of it for one token.

    The first `SMALL_BODY_BYTES` of each request are not counted, so that small requests never wait.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        #: Bytes taken by the requests under way.
        self.taken = 0
        self._of_token: dict[str, int] = {}
        #: Waiting requests: their token and bytes, in the order of arrival.
        self._waiting: dict[asyncio.Future[None], tuple[str, int]] = {}

    @property
    def waiting(self) -> int:
        """Requests that wait for memory."""
        return len(self._waiting)

    def share(self, token: str) -> Share:
        """The share of one request of this token."""
        return Share(self, token)

    def take(self, token: str, more: int) -> bool:
        """Takes this many bytes for this token; false if they are not available."""
        if self.taken + more > self.max_bytes or not self._is_fair(token, more):
            return False
        self.taken += more
        self._of_token[token] = self._of_token.get(token, 0) + more
        return True

    def give_back(self, token: str, less: int) -> None:
        """Returns this many bytes of the token to waiting requests."""
        self.taken -= less
        left = self._of_token.get(token, 0) - less
        if left > 0:
            self._of_token[token] = left
        else:
            self._of_token.pop(token, None)
        self._hand_out()

    async def wait(self, token: str, more: int) -> bool:
        """Takes this many bytes as soon as they are available, first come first served; false after `ROOM_SECONDS`."""
        if not self._waiting and self.take(token, more):
            return True
        if more > self.max_bytes // 2 or len(self._waiting) >= MAX_WAITING_FOR_ROOM:
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = (token, more)
        self._hand_out()
        try:
            async with asyncio.timeout(ROOM_SECONDS):
                await turn
        except TimeoutError:
            return self._has_come(turn)
        except asyncio.CancelledError:
            if self._has_come(turn):
                self.give_back(token, more)
            raise
        finally:
            self._waiting.pop(turn, None)
        return True

    @staticmethod
    def _has_come(turn: asyncio.Future[None]) -> bool:
        return turn.done() and not turn.cancelled()

    def _is_fair(self, token: str, more: int) -> bool:
        return self._of_token.get(token, 0) + more <= self.max_bytes // 2

    def _hand_out(self) -> None:
        """The first waiting request is not overtaken, unless its own token has used its half."""
        for turn, (token, more) in list(self._waiting.items()):
            if turn.done():
                continue
            if self.taken + more > self.max_bytes:
                return
            if self.take(token, more):
                del self._waiting[turn]
                turn.set_result(None)


class Share:
    """The share of one request; returned at the end of the block."""

    __slots__ = ("_held", "_room", "token")

    def __init__(self, room: Room, token: str) -> None:
        self._room = room
        self.token = token
        self._held = 0

    def grow(self, size_bytes: int) -> bool:
        """Grows the share to this size; false if there is no memory left."""
        more = self._missing(size_bytes)
        if more > 0 and not self._room.take(self.token, more):
            return False
        self._held += max(more, 0)
        return True

    async def wait(self, size_bytes: int) -> None:
        """Grows the share to this size as soon as possible; `Denied` if that takes too long."""
        more = self._missing(size_bytes)
        if more > 0:
            if not await self._room.wait(self.token, more):
                raise Denied(problems.BUSY.problem("large requests are under way; send it again"))
            self._held += more

    def shrink(self, size_bytes: int) -> None:
        """Reduces the share to this size."""
        less = -self._missing(size_bytes)
        if less > 0:
            less = min(less, self._held)
            self._held -= less
            self._room.give_back(self.token, less)

    def give_back(self) -> None:
        """Returns the whole share."""
        self.shrink(0)

    def _missing(self, size_bytes: int) -> int:
        return size_bytes - SMALL_BODY_BYTES - self._held

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()
