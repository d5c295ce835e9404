"""What a run says of itself: progress and log lines, bounded, seen while it goes on and kept when it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from holdfast import current
from holdfast.clock import SystemClock
from holdfast.core.task import Extension, Hold, State, read_progress
from holdfast.errors import BadOption
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from holdfast.worker.child.context import LogKeeper
from holdfast.worker.child.run import MAX_LINE_CHARS, MAX_LINES, MAX_LOG_BYTES, Report
from holdfast.worker.child.watchdog import MESSAGE_BYTES, Watchdog
from holdfast.worker.protocol import FromChild, ProgressReport
from tests.servers.urls import STORES, fresh_store
from tests.worker.rig import Rig

log = logging.getLogger("shop.orders")


@pytest.fixture(autouse=True)
def keeper() -> Iterator[None]:
    """As in a worker with --log-level info."""
    root = logging.getLogger()
    keeper, before = LogKeeper(logging.INFO), root.level
    root.setLevel(logging.INFO)
    root.addHandler(keeper)
    yield
    root.removeHandler(keeper)
    root.setLevel(before)


def texts(report: Report) -> list[str]:
    return [line.text for line in report.log()]


# -- bounds --------------------------------------------------------------------------------------------------


def test_the_last_lines_are_kept_and_the_others_counted() -> None:
    report = Report()
    for number in range(MAX_LINES + 7):
        report.add(1, "info", f"line {number}")
    kept = texts(report)
    assert kept[0] == "… 7 lines left out"
    assert (kept[1], kept[-1], len(kept)) == ("line 7", f"line {MAX_LINES + 6}", MAX_LINES + 1)


def test_a_long_line_is_cut_and_says_so() -> None:
    report = Report()
    report.add(1, "info", "x" * (MAX_LINE_CHARS + 1))
    (line,) = texts(report)
    assert len(line) == MAX_LINE_CHARS
    assert line.endswith("x…")


@pytest.mark.parametrize("character", ["x", "\x00", "🐈", "\udc80", '"'])
def test_all_lines_together_are_bounded_as_they_are_stored(character: str) -> None:
    report = Report()
    for _ in range(MAX_LINES):
        report.add(1, "info", character * MAX_LINE_CHARS)
    stored = report.all()
    assert len(stored) <= MAX_LOG_BYTES + 500
    assert len(stored) > MAX_LOG_BYTES - 7 * MAX_LINE_CHARS
    assert "left out" in read_progress(stored).log[0].text


def test_threads_that_log_at_once_lose_nothing_but_the_oldest() -> None:
    report = Report()

    def write() -> None:
        for number in range(500):
            report.add(1, "info", str(number))
            report.all()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts(report)) == MAX_LINES + 1


@pytest.mark.parametrize("value", ["3", None, object(), 1j])
def test_progress_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(BadOption, match="is not a number"):
        Report().tell(value, "of ten" if value is None else None, None)  # type: ignore[arg-type]


def test_progress_keeps_the_form_that_its_readers_know() -> None:
    report = Report()
    report.tell(3, 10, "half way")
    assert json.loads(report.all()) == {"done": 3, "total": 10, "note": "half way"}
    report.add(5, "warning", "slow")
    assert json.loads(report.all()) == {"done": 3, "total": 10, "note": "half way", "log": [[5, "warning", "slow"]]}


# -- what is kept --------------------------------------------------------------------------------------------


async def _done(function: Callable[[], Any], state: State, url: str = "sqlite://") -> Any:
    rig = Rig(function, is_async=asyncio.iscoroutinefunction(function), store=open_store(url))
    await rig.enqueue(1)
    await rig.drain(state)
    (task,) = await rig.tasks()
    await rig.store.close()
    return task


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    return fresh_store(request.param, tmp_path)


def test_the_lines_of_a_run_are_there_when_it_has_succeeded(url: str) -> None:
    def talks() -> None:
        current().log.warning("hello from %s", "inside")
        log.info("order %d", 7)
        log.debug("not for a worker at this level")
        current().progress(10, 10)

    task = asyncio.run(_done(talks, State.SUCCEEDED, url))
    progress = read_progress(task.progress)
    assert [(line.level, line.text) for line in progress.log] == [
        ("warning", "hello from inside"),
        ("info", "shop.orders: order 7"),
    ]
    assert abs(progress.log[0].at_ms - SystemClock().now_ms()) < 60_000
    assert (progress.done, progress.total) == (10, 10)


def test_the_lines_of_a_failing_run_are_there_with_its_error(url: str) -> None:
    async def fails() -> None:
        log.info("about to fail")
        raise ValueError("no")

    task = asyncio.run(_done(fails, State.RETRY_PENDING, url))
    error = task.history[0].error
    assert (error.type, [line.text for line in error.log]) == ("builtins.ValueError", ["shop.orders: about to fail"])


def test_an_exception_that_is_logged_is_kept_with_its_traceback() -> None:
    async def recovers() -> None:
        try:
            raise KeyError("gone")
        except KeyError:
            log.exception("not found")

    task = asyncio.run(_done(recovers, State.SUCCEEDED))
    (line,) = read_progress(task.progress).log
    assert line.text.startswith("shop.orders: not found\nTraceback")
    assert line.text.endswith("KeyError: 'gone'")


def test_a_line_that_cannot_be_formatted_harms_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)

    async def stumbles() -> None:
        log.info("%d pieces", "many")

    task = asyncio.run(_done(stumbles, State.SUCCEEDED))
    (line,) = read_progress(task.progress).log
    assert "'%d pieces' cannot be formatted" in line.text


def test_lines_of_other_threads_and_outside_of_tasks_belong_to_no_other_task() -> None:
    async def talks() -> None:
        log.info("inside")
        await asyncio.to_thread(log.info, "in a thread of the task")
        thread = threading.Thread(target=log.info, args=("elsewhere",))
        thread.start()
        thread.join()

    log.info("outside")
    task = asyncio.run(_done(talks, State.SUCCEEDED))
    assert [line.text for line in read_progress(task.progress).log] == [
        "shop.orders: inside",
        "shop.orders: in a thread of the task",
    ]


class _Counting(PassingStore):
    """Counts what is written besides claims and settlements."""

    extended = 0

    async def extend(self, holds: Sequence[Hold], lease_ms: int, *, check_only: bool = False) -> list[Extension]:
        self.extended += len(holds)
        return await self.inner.extend(holds, lease_ms, check_only=check_only)


def test_only_runs_that_say_something_pay_for_it() -> None:
    async def scenario() -> None:
        store = _Counting(open_store("sqlite://"))

        async def sometimes(talks: bool) -> None:
            if talks:
                log.info("one of them")

        rig = Rig(sometimes, store=store)
        await rig.enqueue(20, b'{"talks":false}')
        await rig.enqueue(3, b'{"talks":true}')
        await rig.drain()
        assert store.extended == 3
        await store.close()

    asyncio.run(scenario())


# -- while it goes on ----------------------------------------------------------------------------------------


def test_reports_are_passed_on_once_a_second_at_most_and_in_messages_of_a_bounded_size() -> None:
    async def scenario() -> None:
        told: list[ProgressReport] = []
        leave = asyncio.Event()

        async def talks() -> None:
            while not leave.is_set():
                current().progress(1, note="x" * 500)
                log.info("y" * MAX_LINE_CHARS)
                await asyncio.sleep(0.001)

        async def tell(message: FromChild) -> None:
            if isinstance(message, ProgressReport):
                told.append(message)

        rig = Rig(talks, slots=200)
        await rig.enqueue(200)
        working = asyncio.create_task(rig.fetcher.run())
        watchdog = asyncio.create_task(Watchdog(rig.slots, rig.fetcher, 600, SystemClock(), tell).run())
        async with asyncio.timeout(30):
            while sum(len(message.latest) for message in told) < 600:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        by_run: dict[int, int] = {}
        for message in told:
            assert sum(map(len, message.latest.values())) < MESSAGE_BYTES + 2 * MAX_LOG_BYTES
            for key in message.latest:
                by_run[key] = by_run.get(key, 0) + 1
        assert len(told) > 3
        assert max(by_run.values()) <= 4, "with a lease of 600 ms there were about 30 looks"
        leave.set()
        watchdog.cancel()
        await rig.until(State.SUCCEEDED, 200)
        rig.fetcher.quiet()
        await working
        await rig.store.close()

    asyncio.run(scenario())
