"""Steps that are done once: their results are kept, and given to every run that comes to them again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Snooze, TaskHandle, current
from holdfast.clock import SystemClock
from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.lifecycle import Change, Event
from holdfast.stores import documents
from holdfast.stores.contract import DocumentResult, DocumentWrite, Reserve, Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from holdfast.testing.kit.faulty import Faults, FaultyStore
from holdfast.worker.child.execute import run_coroutine, run_function
from holdfast.worker.child.run import Ending, Run, RunContext
from tests.support import run_worker
from tests.worker.apps import steps
from tests.worker.helpers import outcomes
from tests.worker.rig import IDS, memo, new_task, plain, plain_memo, run_of, task_type


@pytest.fixture
def shop(url: str) -> Iterator[Holdfast]:
    with steps.make_app(url) as app:
        yield app


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def enqueue(shop: Holdfast, name: str, *args: Any) -> TaskHandle[str]:
    return shop.task_types[name].enqueue(*args)


def worker(url: str) -> Any:
    return run_worker("tests.worker.apps.steps:app", url)


# -- with real workers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pays", "pays_in_thread"])
def test_a_retried_task_does_not_repeat_its_step(shop: Holdfast, url: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with worker(url):
        task = enqueue(shop, name, str(path), 2)
        assert task.result(30) == "receipt of payment by attempt 1"
    assert outcomes(task) == ["failed", "failed", "succeeded"]
    assert lines(path) == ["payment"]


def test_a_step_belongs_to_its_key_and_not_to_its_task(shop: Holdfast, url: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with worker(url):
        first = enqueue(shop, "shares", str(path), "order-42").result(30)
        assert enqueue(shop, "shares_in_thread", str(path), "order-42").result(30) == first
        enqueue(shop, "shares", str(path), "order-43").result(30)
    assert lines(path) == ["shared", "shared"]


def test_a_worker_that_dies_after_the_step_was_kept_does_not_repeat_it(
    shop: Holdfast, url: str, tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    with worker(url):
        task = enqueue(shop, "dies_after_its_step", str(path))
        assert task.result(30) == "receipt of payment by attempt 1"
    assert outcomes(task) == ["worker_lost", "succeeded"]
    assert lines(path) == ["payment"]


def test_a_worker_that_dies_before_the_step_was_kept_repeats_it(shop: Holdfast, url: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with worker(url):
        assert enqueue(shop, "dies_in_its_step", str(path)).result(30) == "receipt of payment by attempt 2"
    assert lines(path) == ["payment", "payment"]


# -- one run at a time ---------------------------------------------------------------------------------------


@dataclass
class Receipt:
    """What a step gives."""

    number: int
    items: list[str]


class Bench:
    """A store, and runs of functions under real claims in it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls = count(1)

    async def begin(self, function: Callable[..., Any]) -> Run:
        """A new task of this function, claimed and not yet started."""
        place = await self.store.placement()
        await self.store.enqueue([new_task(partition=place("default", None))])
        return await self.begin_again(function)

    async def begin_again(self, function: Callable[..., Any]) -> Run:
        """The next task of the queue, claimed and not yet started."""
        shares = [QueueShare("default", 1)]
        reserved = await self.store.reserve(
            Reserve(claim_id=IDS.claim_id(), worker_id="w", shares=shares, max_tasks=1, lease_ms=60_000)
        )
        kind = task_type(function, asyncio.iscoroutinefunction(function))
        deadline_ms = SystemClock().monotonic_ms() + 60_000
        context = RunContext(self.store, asyncio.get_running_loop())
        return Run(1, reserved.tasks[0], kind, 1, deadline_ms, context)

    async def finish(self, run: Run) -> Change | None:
        """Runs it to its end."""
        if run.type.is_async:
            return await asyncio.create_task(run_coroutine(run))
        return await asyncio.to_thread(run_function, run)

    async def outcome(self, function: Callable[..., Any]) -> Change:
        """How a new task of this function ends."""
        change = await self.finish(await self.begin(function))
        assert change is not None
        return change


def bench(scenario: Callable[[Bench], Any], url: str, wrap: Callable[[Store], Store] = lambda store: store) -> None:
    async def run() -> None:
        store = wrap(open_store(url))
        try:
            await scenario(Bench(store))
        finally:
            await store.close()

    asyncio.run(run())


def test_what_it_gives_is_the_same_at_first_and_later(url: str) -> None:
    seen: list[Receipt] = []

    def charge(number: int, *items: str) -> Receipt:
        assert not seen, "called again"
        return Receipt(number, list(items))

    async def charge_async(number: int) -> Receipt:
        return charge(number)

    def in_thread() -> None:
        seen.append(current().once("k-1", charge, 7, "tea"))

    async def on_the_loop() -> None:
        seen.append(await current().once("k-1", charge_async, 8))

    async def scenario(at: Bench) -> None:
        for function in (in_thread, in_thread, on_the_loop):
            assert (await at.outcome(function)).event is Event.ACK

    bench(scenario, url)
    assert seen == [Receipt(7, ["tea"])] * 3


def test_without_an_annotation_it_is_plain_json_at_first_and_later(url: str) -> None:
    seen: list[Any] = []

    async def on_the_loop() -> None:
        seen.append(await current().once("k-1", asyncio.to_thread, Receipt, 7, ["tea"]))

    async def scenario(at: Bench) -> None:
        for _ in range(2):
            assert (await at.outcome(on_the_loop)).event is Event.ACK

    bench(scenario, url)
    assert seen == [{"number": 7, "items": ["tea"]}] * 2


def test_a_task_type_can_be_a_step(url: str) -> None:
    app = Holdfast(url)
    calls = count(1)

    @app.task(name="charge")
    async def charge() -> int:
        return next(calls)

    @app.task(name="charge-in-thread")
    def charge_in_thread() -> int:
        return next(calls)

    async def on_the_loop() -> int:
        return await current().once("a", charge)

    def in_thread() -> int:
        return current().once("b", charge_in_thread)

    async def scenario(at: Bench) -> None:
        results = [plain(await at.outcome(each)) for each in (on_the_loop, in_thread, on_the_loop, in_thread)]
        assert results == [b"1", b"2", b"1", b"2"]

    bench(scenario, url)


def test_a_claim_that_has_passed_begins_no_step(url: str) -> None:
    def charge() -> None:
        pytest.fail("was called")

    def in_thread() -> None:
        current().once("k-1", charge)

    async def scenario(at: Bench) -> None:
        run = await at.begin(in_thread)
        run.lease_ends_ms = 0
        assert await at.finish(run) is None

    bench(scenario, url)


@pytest.mark.parametrize("done_by_another", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
def test_a_worker_that_lost_its_claim_meanwhile_keeps_nothing(url: str, is_async: bool, done_by_another: bool) -> None:
    async def scenario(at: Bench) -> None:
        taken, left = asyncio.Event(), asyncio.Event()

        async def charge() -> str:
            taken.set()
            await left.wait()
            return "late"

        async def on_the_loop() -> str:
            return await current().once("k-1", charge)

        def in_thread() -> str:
            return current().once("k-1", lambda: asyncio.run_coroutine_threadsafe(charge(), loop).result())

        loop = asyncio.get_running_loop()
        run = await at.begin(on_the_loop if is_async else in_thread)
        running = asyncio.create_task(at.finish(run))
        await taken.wait()
        task = run.task
        [verdict] = await at.store.apply(
            [lifecycle.lose(task.task_id, task.token, "worker_lost", attempt=1, policy=task.policy)]
        )
        assert verdict.applied
        if done_by_another:
            await documents.keep(at.store, "k-1", memo("k-1", b'"in time"'), 60_000, None)
        left.set()
        assert await running is None, "nothing may be settled"
        assert plain_memo("k-1", await documents.kept(at.store, "k-1")) == (b'"in time"' if done_by_another else None)

    bench(scenario, url)


def test_of_two_at_once_the_first_that_keeps_wins(url: str) -> None:
    async def scenario(at: Bench) -> None:
        both = asyncio.Barrier(2)

        async def charge() -> int:
            await both.wait()
            return next(at.calls)

        async def on_the_loop() -> int:
            return await current().once("k-1", charge)

        changes = await asyncio.gather(at.outcome(on_the_loop), at.outcome(on_the_loop))
        assert [change.event for change in changes] == [Event.ACK, Event.ACK]
        assert plain(changes[0]) == plain(changes[1]) == plain_memo("k-1", await documents.kept(at.store, "k-1"))

    bench(scenario, url)


def test_an_outage_of_the_store_repeats_no_step(url: str) -> None:
    async def scenario(at: Bench) -> None:
        assert isinstance(at.store, FaultyStore)
        runs: list[Run] = []

        def in_thread() -> int:
            return current().once(f"k-{current().task_id}", lambda: next(at.calls))

        for _ in range(10):
            at.store.strike(False)
            runs.append(await at.begin(in_thread))
            at.store.strike(True)
            change = await at.finish(runs[-1])
            assert change is not None
            assert plain(change) == b"%d" % len(runs)
        assert at.store.struck["lost_replies"] > 0

    bench(scenario, url, lambda store: FaultyStore(store, Faults(seed=3, lost_calls=0.3, lost_replies=0.3)))


class _SlowToKeep(PassingStore):
    """Keeps when it is allowed to."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.asked = asyncio.Event()
        self.allowed = asyncio.Event()

    async def put(self, write: DocumentWrite) -> DocumentResult:
        self.asked.set()
        await self.allowed.wait()
        return await self.inner.put(write)


@pytest.mark.parametrize("ending", [Ending.CANCELLED, Ending.SHUTDOWN])
def test_a_cancellation_waits_until_the_result_is_kept(url: str, ending: Ending) -> None:
    async def scenario(at: Bench) -> None:
        store = at.store
        assert isinstance(store, _SlowToKeep)

        async def charge() -> int:
            return 7

        async def on_the_loop() -> None:
            await current().once("k-1", charge)
            raise AssertionError("was cancelled")

        run = await at.begin(on_the_loop)
        changes: list[Change | None] = []

        async def note() -> None:
            changes.append(await run_coroutine(run))

        run.handle = asyncio.create_task(note())
        await store.asked.wait()
        run.end(ending)
        await asyncio.sleep(0)
        assert not run.handle.done()
        store.allowed.set()
        await run.handle
        assert changes[0] is not None
        assert changes[0].event is (Event.STOP if ending is Ending.CANCELLED else Event.RELEASE)
        assert plain_memo("k-1", await documents.kept(store, "k-1")) == b"7"

    bench(scenario, url, _SlowToKeep)


def test_an_interrupted_thread_waits_until_the_result_is_kept(url: str) -> None:
    async def scenario(at: Bench) -> None:
        store = at.store
        assert isinstance(store, _SlowToKeep)

        def in_thread() -> None:
            current().once("k-1", lambda: 7)
            raise AssertionError("was interrupted")

        run = await at.begin(in_thread)
        finishing = asyncio.create_task(at.finish(run))
        await store.asked.wait()
        run.end(Ending.CANCELLED)
        # A run that does not wait ends at once; a busy machine can only hide that, never fail this.
        await asyncio.wait({finishing}, timeout=0.05)
        assert not finishing.done()
        store.allowed.set()
        change = await finishing
        assert change is not None
        assert change.event is Event.STOP
        assert plain_memo("k-1", await documents.kept(store, "k-1")) == b"7"

    bench(scenario, url, _SlowToKeep)


def test_a_step_that_snoozes_is_not_done(url: str) -> None:
    def in_thread() -> None:
        current().once("k-1", lambda: Snooze("5s"))

    async def scenario(at: Bench) -> None:
        change = await at.outcome(in_thread)
        assert (change.event, change.delay_ms) == (Event.SNOOZE, 5_000)
        assert await documents.kept(at.store, "k-1") is None

    bench(scenario, url)


def test_a_step_that_fails_is_done_again(url: str) -> None:
    async def scenario(at: Bench) -> None:
        def charge() -> int:
            number = next(at.calls)
            if number == 1:
                raise RuntimeError("no answer")
            return number

        def in_thread() -> int:
            return current().once("k-1", charge)

        assert (await at.outcome(in_thread)).event is Event.RETRY
        assert plain(await at.outcome(in_thread)) == b"2"

    bench(scenario, url)


@pytest.mark.parametrize(
    ("result", "words"),
    [(object(), "cannot be written as JSON"), ("x" * 300_000, "300,002 bytes"), (float("nan"), "nan")],
)
def test_a_result_that_cannot_be_kept_is_not_tried_again(url: str, result: Any, words: str) -> None:
    def in_thread() -> None:
        current().once("k-1", lambda: result)

    async def scenario(at: Bench) -> None:
        change = await at.outcome(in_thread)
        assert (change.event, change.reason) == (Event.BURY, "not_retryable")
        assert change.error is not None
        assert "once('k-1'): result" in change.error.message
        assert words in change.error.message

    bench(scenario, url)


def test_results_are_kept_for_the_time_that_is_asked_for(url: str) -> None:
    asked: list[tuple[str, int | None]] = []

    class Noting(PassingStore):
        async def put(self, write: DocumentWrite) -> DocumentResult:
            asked.append((write.name, write.ttl_ms))
            return await self.inner.put(write)

    def charge(keep: int = 0) -> int:
        return keep

    def in_thread() -> int:
        current().once("a", charge)
        current().once("b", keep="30d")(charge)
        return current().once("c", charge, keep=5)  # an option of once cannot be taken for an argument

    async def scenario(at: Bench) -> None:
        assert plain(await at.outcome(in_thread)) == b"5"

    bench(scenario, url, Noting)
    assert asked == [("a", 7 * 86_400_000), ("b", 30 * 86_400_000), ("c", 7 * 86_400_000)]


# -- wrong calls ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: current().once("a b", int), "key 'a b' is refused: use 1 to 200 visible ASCII characters"),
        (lambda: current().once("", int), "key '' is refused"),
        (lambda: current().once("k", keep="soon")(int), "'soon' is not a duration"),
        (lambda: current().once("k", keep=0)(int), "keep=0 would keep nothing"),
        (lambda: current().once("k", int), "needs a store"),
    ],
)
def test_a_wrong_call_is_told_in_one_line(call: Callable[[], Any], words: str) -> None:
    change = asyncio.run(asyncio.to_thread(run_function, run_of(call)))
    assert change is not None
    assert change.error is not None
    assert words in change.error.message
    assert "\n" not in change.error.message


def test_a_plain_function_in_an_event_loop_is_refused_with_what_to_do() -> None:
    def charge() -> int:
        raise AssertionError("was called")

    async def on_the_loop() -> int:
        return current().once("k-1", charge)

    change = asyncio.run(run_coroutine(run_of(on_the_loop, is_async=True)))
    assert change is not None
    assert change.error is not None
    assert change.error.type == "holdfast.errors.UsageError"
    assert "await current().once('k-1', asyncio.to_thread, charge, ...)" in change.error.message
