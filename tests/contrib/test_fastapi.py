"""Lifespans of several parts as one, and an API that says when its own was forgotten."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.contrib.fastapi import Lifespan, TaskApi, lifespans
from holdfast.contrib.signals import told_of_the_end
from holdfast.errors import BadOption, UsageError


def noting(name: str, events: list[str], *, fails: bool = False) -> Lifespan:
    @asynccontextmanager
    async def lifespan(service: Any) -> AsyncIterator[dict[str, Any]]:
        if fails:
            raise ValueError(name)
        events.append(f"+{name} {service}")
        try:
            yield {name: 1}
        finally:
            events.append(f"-{name}")

    return lifespan


def test_parts_begin_in_order_end_in_the_other_and_join_their_state() -> None:
    events: list[str] = []

    async def main() -> None:
        async with lifespans(noting("one", events), noting("two", events))("service") as state:
            assert state == {"one": 1, "two": 1}

    asyncio.run(main())
    assert events == ["+one service", "+two service", "-two", "-one"]


def test_what_has_begun_ends_when_a_later_part_fails() -> None:
    events: list[str] = []

    async def main() -> None:
        async with lifespans(noting("one", events), noting("two", events, fails=True))("service"):
            raise AssertionError

    with pytest.raises(ValueError, match="two"):
        asyncio.run(main())
    assert events == ["+one service", "-one"]


def test_an_app_is_closed_at_the_end_and_opens_again(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/tasks.db")

    @app.task(name="noop")
    def noop() -> None: ...

    async def main() -> None:
        async with lifespans(app)(None):
            before = app.store
            await noop.aenqueue()
        assert app.store is not before
        await noop.aenqueue()
        await app.aclose()

    asyncio.run(main())


def test_an_api_whose_lifespan_was_forgotten_says_how_to_begin_it(tmp_path: Path) -> None:
    api = TaskApi(f"sqlite:///{tmp_path}/tasks.db")

    async def never(*_: Any) -> Any:
        raise AssertionError

    with pytest.raises(UsageError, match=r"FastAPI\(lifespan=lifespans\(api\)\)"):
        asyncio.run(api({"type": "http"}, never, never))
    assert not list(tmp_path.iterdir()), "nothing was opened"


def test_an_api_serves_one_service_at_a_time_and_can_be_opened_again(tmp_path: Path) -> None:
    api = TaskApi(f"sqlite:///{tmp_path}/tasks.db")

    async def main() -> None:
        async with api.lifespan():
            with pytest.raises(BadOption):
                async with api.lifespan():
                    raise AssertionError
        async with api.lifespan():
            pass

    asyncio.run(main())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_serves_hears_of_the_end_and_handlers_are_put_back(number: signal.Signals) -> None:
    heard: list[str] = []
    before = signal.signal(number, lambda *_: heard.append("server"))
    theirs = signal.getsignal(number)

    async def main() -> None:
        with told_of_the_end(lambda: heard.append("we")):
            signal.raise_signal(number)
            await asyncio.sleep(0)
        signal.raise_signal(number)

    try:
        asyncio.run(main())
        assert sorted(heard) == ["server", "server", "we"]
        assert signal.getsignal(number) is theirs
    finally:
        signal.signal(number, before)


def test_a_signal_that_nobody_handles_and_other_threads_are_left_alone() -> None:
    async def main() -> object:
        with told_of_the_end(lambda: None):
            return signal.getsignal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert asyncio.run(main()) == signal.SIG_DFL
        signal.signal(signal.SIGTERM, nothing := lambda *_: None)
        with ThreadPoolExecutor() as pool:
            assert pool.submit(asyncio.run, main()).result() is nothing
    finally:
        signal.signal(signal.SIGTERM, before)
