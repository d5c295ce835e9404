"""Many who wait are one to the store, and a wake-up goes to one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import cast

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.server.waiters import Waiters, _together
from holdfast.stores.contract import Store


class Wakeups:
    """A store that only wakes up; each wake-up ends one `wait`."""

    def __init__(self) -> None:
        self.calls = 0
        self.listening = 0
        self.most = 0
        self.away = False
        self._notices: dict[str, asyncio.Queue[None]] = {}

    def notify(self, name: str) -> None:
        self._notices.setdefault(name, asyncio.Queue()).put_nowait(None)

    async def wait(self, wakeups: Sequence[str], timeout_ms: int) -> bool:
        self.calls += 1
        if self.away:
            raise StoreUnavailable("away")
        self.listening += 1
        self.most = max(self.most, self.listening)
        notices = [asyncio.ensure_future(self._notices.setdefault(name, asyncio.Queue()).get()) for name in wakeups]
        try:
            done, _ = await asyncio.wait(notices, timeout=timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            return bool(done)
        finally:
            self.listening -= 1
            for notice in notices:
                notice.cancel()


class Bench:
    """Waiters over wake-ups, and who was woken."""

    def __init__(self) -> None:
        self.wakeups = Wakeups()
        self.waiters = Waiters(cast("Store", self.wakeups))
        self.woken: list[str] = []

    def join(
        self, name: str, queues: Sequence[str] = ("q",), kind: str = "", finds: bool = True, token: str = ""
    ) -> asyncio.Task[bool]:
        return asyncio.create_task(self._wait(name, queues, kind, finds, token))

    async def _wait(self, name: str, queues: Sequence[str], kind: str, finds: bool, token: str) -> bool:
        async with self.waiters.place(queues, kind, token) as place:
            while await place.woken(20):
                self.woken.append(name)
                if finds:
                    place.found = True
                    return True
        return False


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(scenario: object) -> None:
    async def whole() -> None:
        bench = Bench()
        try:
            await scenario(bench)  # type: ignore[operator]
        finally:
            await bench.waiters.close()
        assert bench.wakeups.listening == 0

    asyncio.run(whole())


def test_a_thousand_who_wait_are_one_call() -> None:
    async def scenario(bench: Bench) -> None:
        waiting = [bench.join(str(n)) for n in range(1_000)]
        await settle()
        assert (bench.waiters.waiting, bench.waiters.listening, bench.wakeups.calls) == (1_000, 1, 1)
        bench.waiters.release_all()
        assert await asyncio.gather(*waiting) == [False] * 1_000

    run(scenario)


def test_subsets_of_a_few_queues_are_a_few_calls() -> None:
    async def scenario(bench: Bench) -> None:
        queues = ["a", "b", "c"]
        waiting = [bench.join(str(n), queues[n % 3 :] + queues[: n % 2]) for n in range(60)]
        await settle()
        assert bench.wakeups.calls == 3
        bench.waiters.release_all()
        await asyncio.gather(*waiting)

    run(scenario)


def test_one_ring_wakes_the_one_who_waits_longest() -> None:
    async def scenario(bench: Bench) -> None:
        waiting = [bench.join(name) for name in ("first", "second", "third")]
        await settle()
        bench.wakeups.notify("q")
        assert await waiting[0]
        await settle()
        assert bench.woken == ["first"]
        bench.wakeups.notify("q")
        bench.wakeups.notify("q")
        await asyncio.gather(*waiting)
        assert bench.woken == ["first", "second", "third"]

    run(scenario)


def test_only_those_who_wait_for_that_queue_are_woken() -> None:
    async def scenario(bench: Bench) -> None:
        other, both = bench.join("other", ["b"]), bench.join("both", ["a", "b"])
        await settle()
        bench.wakeups.notify("a")
        assert await both
        assert not other.done()
        bench.waiters.release_all()
        await other

    run(scenario)


def test_who_goes_away_frees_the_place_and_ends_the_listening() -> None:
    async def scenario(bench: Bench) -> None:
        waiting = bench.join("a")
        await settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await settle()
        assert (bench.waiters.waiting, bench.waiters.listening, bench.wakeups.listening) == (0, 0, 0)

    run(scenario)


def test_a_ring_for_one_who_has_gone_is_passed_on() -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.join("first"), bench.join("second")
        await settle()
        bench.wakeups.notify("q")
        await asyncio.sleep(0)  # the ring is on its way to the first
        first.cancel()
        assert await second
        await asyncio.gather(first, return_exceptions=True)

    run(scenario)


@pytest.mark.parametrize("steps", range(8))
def test_no_ring_is_lost_whenever_somebody_goes(steps: int) -> None:
    async def scenario(bench: Bench) -> None:
        first, second = bench.join("first"), bench.join("second")
        await settle()
        bench.wakeups.notify("q")
        for _ in range(steps):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await settle()
        assert bench.woken in (["first"], ["second"])
        assert bench.woken == ["second"] or first.cancelled() is False
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)

    run(scenario)


def test_a_ring_in_vain_goes_to_the_next_kind() -> None:
    async def scenario(bench: Bench) -> None:
        wrong = [bench.join(f"wrong-{n}", kind="other types", finds=False) for n in range(3)]
        right = bench.join("right", kind="these types")
        await settle()
        bench.wakeups.notify("q")
        assert await right
        assert bench.woken == ["wrong-0", "right"]
        bench.waiters.release_all()
        await asyncio.gather(*wrong)

    run(scenario)


def test_a_ring_between_two_waits_is_kept() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.waiters.place(["q"]) as place:
            bench.wakeups.notify("q")  # while the caller looks
            await settle()
            assert await place.woken(20)
            assert not await place.woken(0.01)

    run(scenario)


def test_one_who_leaves_with_nothing_is_expected_back() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(3):
            async with bench.waiters.place(["q"]) as place:
                assert not await place.woken(0.01)
        assert (bench.wakeups.calls, bench.waiters.listening) == (1, 1)
        bench.wakeups.notify("q")
        await settle()
        async with bench.waiters.place(["q"]) as place:
            assert await place.woken(0.01)
            place.found = True
        await settle()
        assert bench.waiters.listening == 0

    run(scenario)


def test_nobody_listens_for_long_where_nobody_waits() -> None:
    async def scenario(bench: Bench) -> None:
        async with bench.waiters.place(["q"]) as place:
            await place.woken(0.01)
        async with asyncio.timeout(10):
            while bench.waiters.listening or bench.wakeups.listening:  # noqa: ASYNC110  (nobody is told)
                await asyncio.sleep(0.05)

    run(scenario)


def test_a_ring_after_the_last_one_has_left_is_heard_where_somebody_waits() -> None:
    """At another server over the same store."""

    async def scenario(bench: Bench) -> None:
        elsewhere = Waiters(cast("Store", bench.wakeups))
        async with bench.waiters.place(["q"]) as place:
            assert not await place.woken(0.01)
        async with elsewhere.place(["q"]) as place:
            asyncio.get_running_loop().call_later(0.3, bench.wakeups.notify, "q")
            assert await place.woken(10)
        await elsewhere.close()

    run(scenario)


def test_a_store_that_is_away_is_asked_again() -> None:
    async def scenario(bench: Bench) -> None:
        bench.wakeups.away = True
        waiting = bench.join("a", finds=True)
        async with asyncio.timeout(10):
            assert await waiting  # after the trouble somebody has to look
        assert bench.wakeups.calls >= 1

    run(scenario)


def test_after_the_end_nobody_waits() -> None:
    async def scenario(bench: Bench) -> None:
        bench.waiters.release_all()
        assert await bench.join("late") is False
        assert bench.wakeups.calls == 0

    run(scenario)


def test_long_waits_end_together_and_not_too_late() -> None:
    assert _together(100.37, 20.0) == _together(100.49, 19.0) == 100.25
    assert _together(100.37, 0.5) == 100.37


def test_those_who_looked_once_do_not_make_others_look_less_often() -> None:
    """The more there are that look by themselves, the less often each of them does; only while they do."""

    async def scenario(bench: Bench) -> None:
        def pauses(count: int) -> list[float]:
            with ExitStack() as looking:
                places = [bench.waiters.place(("not listened to",), token="t") for _ in range(count)]
                return [looking.enter_context(bench.waiters.looking(place)) or 0.0 for place in places]

        first, *_, last = pauses(1_000)
        assert pauses(1) == [first]
        assert first < last

    run(scenario)
