"""However many queues are waited for: so many waits at the store, and everybody hears, if later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from holdfast.server import waiters
from holdfast.server.wakeups import MAX_SHARING, MAX_WAITS
from tests.server.test_waiters import Bench, run, settle

#: What one token may have of the waits, and a second one of the rest.
MAX_WAITS_OF_TOKEN, SECOND = 192, 48
HEARD = MAX_WAITS_OF_TOKEN * MAX_SHARING


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  (nobody is told)
            await asyncio.sleep(0.005)


def test_a_thousand_queues_are_heard_with_a_few_hundred_waits() -> None:
    async def scenario(bench: Bench) -> None:
        waiting = [bench.join(f"q{n}", [f"q{n}"], finds=False) for n in range(500)]
        await settle()
        waiting += [bench.join(f"q{n}", [f"q{n}"], finds=False) for n in range(500, 1_000)]
        await settle()
        assert bench.waiters.listening == MAX_WAITS_OF_TOKEN
        await _until(lambda: len(set(bench.woken)) == 1_000)  # who has come to share a wait looks once more
        for n in (0, 191, 192, 999):
            await settle()
            bench.woken.clear()
            bench.wakeups.notify(f"q{n}")
            await _until(lambda name=f"q{n}": name in bench.woken)  # type: ignore[misc]
            assert len(bench.woken) <= MAX_SHARING
        assert bench.wakeups.most <= MAX_WAITS
        bench.waiters.release_all()
        await asyncio.gather(*waiting)

    run(scenario)


def test_one_who_comes_back_to_a_shared_wait_is_not_woken_for_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.waiters.place([f"x{n}" for n in range(MAX_WAITS_OF_TOKEN)]):
            async with bench.waiters.place(["q"]) as place:
                place.found = await place.woken(20)
                assert place.found  # it has joined
            async with bench.waiters.place(["q"]) as place:
                assert not await place.woken(0.5)

    run(scenario)


def test_whatever_anybody_asks_for_there_are_so_many_waits() -> None:
    async def scenario(bench: Bench) -> None:
        greedy = [bench.join("", [f"x{n}-{m}" for m in range(64)], finds=False) for n in range(60)]
        await settle()
        assert (bench.waiters.listening, bench.waiters.waiting) == (MAX_WAITS_OF_TOKEN, 60)
        assert bench.wakeups.most <= MAX_WAITS
        for each in greedy:
            each.cancel()
        await asyncio.gather(*greedy, return_exceptions=True)
        await _until(lambda: (bench.waiters.listening, bench.wakeups.listening) == (0, 0))

    run(scenario)


def test_one_token_does_not_take_the_waits_of_others() -> None:
    async def scenario(bench: Bench) -> None:
        evil = [bench.join("evil", [f"x{n}-{m}" for m in range(64)], finds=False, token="evil") for n in range(60)]
        await settle()
        others = [bench.join(f"q{n}", [f"q{n}"], token="other") for n in range(SECOND)]
        await settle()
        assert bench.waiters.listening == MAX_WAITS_OF_TOKEN + SECOND
        assert "other" not in "".join(bench.woken)
        for n in range(len(others)):
            bench.wakeups.notify(f"q{n}")
        assert all(await asyncio.gather(*others))
        for each in evil:
            each.cancel()
        await asyncio.gather(*evil, return_exceptions=True)
        await _until(lambda: (bench.waiters.listening, bench.wakeups.listening) == (0, 0))

    run(scenario)


def test_two_tokens_leave_a_wait_to_a_third_and_the_last_ones_share() -> None:
    async def scenario(bench: Bench) -> None:
        evil = [
            bench.join("evil", [f"x{n}-{m}" for m in range(64)], finds=False, token=f"evil-{n % 2}") for n in range(60)
        ]
        await settle()
        listening = bench.waiters.listening
        assert listening <= MAX_WAITS_OF_TOKEN + SECOND
        third = bench.join("third", ["third"], token="third")
        await settle()
        assert bench.waiters.listening == listening + 1
        bench.wakeups.notify("third")
        assert await third
        tokens = [bench.join(f"q{n}", [f"q{n}"], token=f"token-{n}") for n in range(MAX_WAITS - listening)]
        await settle()
        assert bench.waiters.listening == MAX_WAITS
        late = bench.join("late", ["late"], token="late")  # shares a wait of the others
        await _until(lambda: "late" in bench.woken)
        for each in [*evil, *tokens, late]:
            each.cancel()
        await asyncio.gather(*evil, *tokens, late, return_exceptions=True)
        await _until(lambda: (bench.waiters.listening, bench.wakeups.listening) == (0, 0))

    run(scenario)


def test_one_token_that_looks_by_itself_does_not_slow_down_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "_LOOKS_A_SECOND", 10)

    async def scenario(bench: Bench) -> None:
        async with bench.waiters.place([f"x{n}" for n in range(HEARD)], token="evil"):
            evil = [bench.join("evil", ["y"], finds=False, token="evil") for _ in range(200)]
            await settle()
            with bench.waiters.looking(bench.waiters.place(["z"], token="evil")) as seconds:
                assert seconds == waiters._RAREST_LOOK_SECONDS
            with bench.waiters.looking(bench.waiters.place(["z"], token="other")) as seconds:
                assert seconds == waiters._LOOK_SECONDS
            bench.waiters.release_all()
            await asyncio.gather(*evil)

    run(scenario)


def test_one_for_whom_there_is_no_wait_looks_by_itself_until_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "_LOOK_SECONDS", 0.02)

    async def scenario(bench: Bench) -> None:
        async with bench.waiters.place([f"x{n}" for n in range(HEARD)]), bench.waiters.place(["q"]) as place:
            before = place.generations()
            assert await place.woken(20)  # nothing was rung
            assert await place.woken(20)
            assert place.generations() != before  # nor may anybody rely on that
        await _until(lambda: not bench.waiters.listening)
        async with bench.waiters.place(["q"]) as place:
            assert not await place.woken(0.1)
            bench.wakeups.notify("q")
            assert await place.woken(20)

    run(scenario)


def test_those_without_a_wait_look_so_often_and_no_more_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(waiters, "_LOOKS_A_SECOND", 100)

    async def scenario(bench: Bench) -> None:
        async with bench.waiters.place([f"x{n}" for n in range(HEARD)]):
            begun = asyncio.get_running_loop().time()
            waiting = [bench.join(f"q{n}", [f"q{n % 30}"], finds=False) for n in range(60)]
            await _until(lambda: len(set(bench.woken)) == 60)
            seconds = asyncio.get_running_loop().time() - begun
            assert len(bench.woken) <= 100 * (seconds + 1)
            bench.waiters.release_all()
            await asyncio.gather(*waiting)

    run(scenario)


def test_a_store_that_is_away_is_asked_again_for_all_who_share() -> None:
    async def scenario(bench: Bench) -> None:
        bench.wakeups.away = True
        waiting = [bench.join(f"q{n}", [f"q{n}"]) for n in range(MAX_WAITS + 5)]
        async with asyncio.timeout(10):
            assert all(await asyncio.gather(*waiting))

    run(scenario)
