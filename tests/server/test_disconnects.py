"""Work for a client lasts as long as the client, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from holdfast.server.auth import Denied
from holdfast.server.edge import ClientGone
from holdfast.server.polls import while_there
from holdfast.server.routing import Call


class _Visit:
    """A call whose client goes, and whose token ends, when the test says so."""

    def __init__(self) -> None:
        self.request = self.caller = self
        self.gone = asyncio.Event()
        #: Set once it is listened for the client's leaving.
        self.watched = asyncio.Event()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.places = 0

    async def receive(self) -> dict[str, str]:
        self.watched.set()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    @contextmanager
    def waiting(self) -> Iterator[asyncio.Future[None]]:
        self.places += 1
        yield self.ended
        self.places -= 1

    def work(self, work: Coroutine[Any, Any, str]) -> Coroutine[Any, Any, str]:
        return while_there(cast("Call", self), work)


async def _when(event: asyncio.Event, log: list[str], begun: asyncio.Event | None = None) -> str:
    if begun is not None:
        begun.set()
    try:
        await event.wait()
    except asyncio.CancelledError:
        log.append("ended")
        raise
    return "done"


def _troubles() -> list[dict[str, Any]]:
    """What the event loop complains of, from now on."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    return found


def test_the_answer_is_that_of_the_work() -> None:
    async def scenario() -> None:
        visit, done, log = _Visit(), asyncio.Event(), list[str]()
        done.set()
        assert await visit.work(_when(done, log)) == "done"
        assert log == []

    asyncio.run(scenario())


@pytest.mark.parametrize(("leave", "error"), [("gone", ClientGone), ("ended", Denied)])
def test_the_work_ends_with_the_client_and_with_the_token(leave: str, error: type[Exception]) -> None:
    async def scenario() -> None:
        visit, begun, log = _Visit(), asyncio.Event(), list[str]()
        working = asyncio.create_task(visit.work(_when(asyncio.Event(), log, begun)))
        await asyncio.gather(begun.wait(), visit.watched.wait())
        visit.gone.set() if leave == "gone" else visit.ended.set_result(None)
        with pytest.raises(error):
            await working
        assert log == ["ended"]

    asyncio.run(scenario())


@pytest.mark.parametrize("steps", range(5))
def test_a_client_that_leaves_as_the_work_is_done_is_no_trouble(steps: int) -> None:
    async def scenario() -> None:
        visit, begun, done = _Visit(), asyncio.Event(), asyncio.Event()
        troubles = _troubles()
        working = asyncio.create_task(visit.work(_when(done, [], begun)))
        await asyncio.gather(begun.wait(), visit.watched.wait())
        visit.gone.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        done.set()
        assert (await asyncio.gather(working, return_exceptions=True))[0].__class__ in {str, ClientGone}
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        await asyncio.sleep(0)  # callbacks of what has ended
        assert troubles == []

    asyncio.run(scenario())


def test_an_error_of_the_work_is_passed_on_even_if_it_is_a_timeout() -> None:
    async def fails() -> str:
        raise TimeoutError("its own")

    async def scenario() -> None:
        with pytest.raises(TimeoutError, match="its own"):
            await _Visit().work(fails())

    asyncio.run(scenario())


def test_work_that_is_refused_a_place_is_not_left_lying() -> None:
    class Full(_Visit):
        def waiting(self) -> Any:
            raise ClientGone

    async def scenario() -> None:
        with pytest.raises(ClientGone):
            await Full().work(_when(asyncio.Event(), []))

    asyncio.run(scenario())
