"""What was acknowledged and lost stays until it is acknowledged again."""

from __future__ import annotations

from holdfast.core.task import NewTask
from holdfast.stores.redis.replay import MAX_TASKS, WINDOW_MS, ReplayWindow
from holdfast.testing.clock import SteppedClock


def batch(name: str, count: int = 2) -> list[NewTask]:
    return [NewTask(task_id=f"{name}{n}", type="t", queue="q", payload=b"{}") for n in range(count)]


def test_a_smaller_number_than_at_the_beginning_of_the_call_is_a_loss() -> None:
    window = ReplayWindow(SteppedClock().monotonic_ms)
    first = batch("a")
    window.remember(first, 2)
    assert window.notice(window.lowest, 3) == 0
    assert window.notice(window.lowest, 1) == 2
    assert window.lost == first


def test_an_answer_that_was_overtaken_is_no_loss() -> None:
    window = ReplayWindow(SteppedClock().monotonic_ms)
    lowest = window.lowest
    window.remember(batch("b"), 4)
    assert window.notice(lowest, 2) == 0


def test_a_loss_is_noticed_once() -> None:
    window = ReplayWindow(SteppedClock().monotonic_ms)
    window.remember(batch("a"), 10)
    lowest = window.lowest
    assert window.notice(lowest, 1) == 2
    assert window.notice(lowest, 1) == 0


def test_what_is_lost_stays_until_it_is_acknowledged_again() -> None:
    window = ReplayWindow(SteppedClock().monotonic_ms)
    first, second = batch("a"), batch("b")
    window.remember(first, 2)
    window.remember(second, 4)
    window.notice(window.lowest, 0)
    order = []
    while (lost := window.lost) is not None:
        assert window.lost == lost
        order.append(lost)
        window.found(lost, len(order) * 2)
    assert order == [first, second]
    assert window.lowest == 4


def test_old_and_surplus_tasks_leave_the_window() -> None:
    clock = SteppedClock()
    window = ReplayWindow(clock.monotonic_ms)
    window.remember(batch("old"), 2)
    clock.advance(WINDOW_MS + 1)
    window.remember(batch("new"), 4)
    assert window.notice(5, 0) == 2
    for number in range(12):
        window.remember(batch(str(number), 1_000), 100)
    assert window.notice(101, 0) <= MAX_TASKS + 2
