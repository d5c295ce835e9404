"""For tests of links: calls that go on while servers fail, waiting beside the event loop, errors in one line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.errors import StoreUnavailable
from tests.support import eventually


class Callers:
    """Calls that go on until they are stopped; each is made again, with its id, until it is answered."""

    def __init__(self, record: Callable[[str], Awaitable[object]], count: int = 4) -> None:
        self.acknowledged: list[str] = []
        self.gave_up = 0
        self._record = record
        self._stop = asyncio.Event()
        self._tasks = [asyncio.create_task(self._go_on(number)) for number in range(count)]

    async def more(self, number: int = 50) -> None:
        """Returns when so many more were acknowledged."""
        goal = len(self.acknowledged) + number
        while len(self.acknowledged) < goal:
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.005)

    async def stop(self) -> set[str]:
        """Ends the calls; returns every id that was acknowledged."""
        self._stop.set()
        await asyncio.gather(*self._tasks)
        return set(self.acknowledged)

    def abandon(self) -> None:
        """Ends the calls, answered or not."""
        for task in self._tasks:
            task.cancel()

    async def _go_on(self, caller: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            await self._insist(f"{caller}-{number}")

    async def _insist(self, name: str) -> None:
        while True:
            try:
                await self._record(name)
            except StoreUnavailable:
                self.gave_up += 1
            else:
                self.acknowledged.append(name)
                return


async def in_thread(function: Any, *arguments: Any) -> Any:
    """A call that blocks, beside the event loop."""
    return await asyncio.to_thread(function, *arguments)


async def until(condition: Callable[[], object], what: str) -> None:
    """Returns when the condition, looked at beside the event loop, is true."""
    await in_thread(eventually, condition, 30.0, what)


def one_line(error: BaseException, *secrets: str) -> str:
    """The message, which is one line and has none of the secrets in it, nor do its causes."""
    text = str(error)
    assert "\n" not in text
    chain: Sequence[BaseException | None] = [
        error,
        error.__cause__,
        None if error.__suppress_context__ else error.__context__,
    ]
    for secret in secrets:
        assert all(secret not in str(each) + repr(each) for each in chain if each)
    return text
