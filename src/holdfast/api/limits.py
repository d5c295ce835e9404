"""How much one token may ask for: so many requests in a time, so many that wait at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from msgspec.structs import replace

from holdfast.api.guard import Denied
from holdfast.core.rates import Bucket, Rate
from holdfast.wire import problems

#: Long polls, waits for results and streams of events, all together.
MAX_WAITING: Final = 5_000


class Allowance:
    """What a token has left. It outlives the record of the token, so that a change of that gives nothing anew."""

    def __init__(self, max_waiting: int) -> None:
        self._bucket: Bucket | None = None
        self._max_waiting = max_waiting
        #: One for each request that waits, done when the token is no longer good. One for all of them would be looked
        #: through by each that comes or goes.
        self._places: set[asyncio.Future[None]] = set()

    @property
    def waiting(self) -> int:
        """How many requests wait on this token."""
        return len(self._places)

    def spend(self, rate: Rate | None, now_ms: int) -> None:
        """Takes one request of the rate, or refuses it and says when to come again."""
        if rate is None:
            return
        if self._bucket is None or self._bucket.rate != rate:
            self._bucket = Bucket(rate, now_ms)
        wait_ms = self._bucket.take(now_ms)
        if wait_ms:
            refusal = problems.TOO_MANY_REQUESTS.problem(f"this token may make {rate} requests")
            raise Denied(replace(refusal, retry_after=-(-wait_ms // 1000)))

    @contextmanager
    def place(self) -> Iterator[asyncio.Future[None]]:
        """A place among the requests that wait; what it gives is done when the token is no longer good."""
        if self.waiting >= self._max_waiting:
            most = f"this token has {self.waiting:,} requests waiting, which is the most"
            raise Denied(problems.TOO_MANY_REQUESTS.problem(most))
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._places.add(ended)
        try:
            yield ended
        finally:
            self._places.discard(ended)

    def end(self) -> None:
        """The token is no longer good."""
        for ended in self._places:
            if not ended.done():
                ended.set_result(None)
