"""Many handles, in the order in which their tasks end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast import Holdfast, ResultTimeout, TaskFailed, TaskHandle, UnknownTask, as_completed
from holdfast.core import lifecycle
from holdfast.core.task import Claimed, Failure
from holdfast.errors import BadDuration, BadOption, StoreUnavailable
from holdfast.producer import completion
from tests.producer.setting import Setting


def succeed(setting: Setting, task: Claimed) -> None:
    setting.settle(lifecycle.ack(task.task_id, task.token, b"2"))


def claims(setting: Setting, number: int) -> list[Claimed]:
    return [setting.claim() for _ in range(number)]


def ids(handles: Sequence[TaskHandle[int]]) -> list[str]:
    return [handle.task_id for handle in handles]


def test_handles_come_in_the_order_in_which_their_tasks_end(setting: Setting) -> None:
    handles = [setting.double.enqueue(number) for number in range(3)]
    claimed = {task.task_id: task for task in claims(setting, 3)}
    first, second, third = (claimed[handle.task_id] for handle in handles)
    succeed(setting, second)
    seen = []
    for handle in as_completed(handles, timeout=30):
        seen.append(handle.task_id)
        if handle == handles[1]:
            succeed(setting, third)
        elif handle == handles[2]:
            succeed(setting, first)
    assert seen == ids([handles[1], handles[2], handles[0]])


def test_an_async_loop_gives_the_same(setting: Setting) -> None:
    handles = [setting.double.enqueue(number) for number in range(3)]
    for task in claims(setting, 3):
        succeed(setting, task)

    async def main() -> list[int]:
        return [await handle.aresult() async for handle in as_completed(handles)]

    assert asyncio.run(main()) == [2, 2, 2]


def test_the_store_is_asked_in_batches_and_not_again_for_the_results(setting: Setting) -> None:
    number = 2 * completion.BATCH + 1
    handles = setting.app.enqueue_many(setting.double.prepare(each) for each in range(number))
    for _ in handles:
        succeed(setting, setting.claim())
    before = setting.store.gets
    assert [handle.result() for handle in as_completed(handles)] == [2] * number
    assert setting.store.gets - before == 3


def test_failures_and_unknown_tasks_come_too(setting: Setting) -> None:
    handle = setting.quiet.enqueue(1)
    setting.fail(Failure("builtins.ValueError", "no"))
    unknown = setting.app.handle("0" * 32, int)
    found = list(as_completed([handle, unknown, handle]))
    assert sorted(ids(found)) == sorted([handle.task_id, unknown.task_id])
    for each in found:
        with pytest.raises(TaskFailed if each == handle else UnknownTask):
            each.result()


def test_the_store_is_asked_less_and_less_often(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = setting.double.enqueue(1)
    task = setting.claim()
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 30:
            await setting.store.apply([lifecycle.ack(task.task_id, task.token, b"2")])

    monkeypatch.setattr("asyncio.sleep", sleep)
    assert [each.result() for each in as_completed([handle])] == [2]
    assert max(pauses) == 0.25
    assert len(pauses) < 40


def test_a_time_limit_names_one_of_those_that_are_left_and_why(setting: Setting) -> None:
    ended, left = setting.double.enqueue(1), setting.double.enqueue(2)
    succeed(setting, setting.claim())
    rounds = iter(as_completed([left, ended], timeout="50ms"))
    assert next(rounds) == ended
    with pytest.raises(ResultTimeout) as caught:
        next(rounds)
    assert str(caught.value).startswith("1 of 2 tasks did not finish in time; one of them: ")
    assert f"task {left.task_id} did not finish within 50ms (state: ready; " in str(caught.value)
    assert (caught.value.task_id, caught.value.state) == (left.task_id, "ready")


def test_no_time_at_all_still_asks_once(setting: Setting) -> None:
    handles = [setting.double.enqueue(number) for number in range(2)]
    for task in claims(setting, 2):
        succeed(setting, task)
    assert len(list(as_completed(handles, timeout=0))) == 2


def test_no_handles_are_no_rounds_and_wrong_ones_are_refused(setting: Setting) -> None:
    assert list(as_completed([])) == []
    with pytest.raises(BadDuration, match=r"^timeout: 'soon' is not a duration"):
        as_completed([], timeout="soon")
    with Holdfast("sqlite://") as other:
        handles = [setting.double.enqueue(1), other.handle("0" * 32, int)]
        with pytest.raises(BadOption, match="handles of one app"):
            as_completed(handles)
    with pytest.raises(BadOption, match=r"as_completed takes handles, as from enqueue\(\) or app.handle\(task_id\)"):
        as_completed(["0" * 32])  # type: ignore[arg-type]


def test_a_loop_that_the_store_did_not_answer_can_be_begun_anew(setting: Setting) -> None:
    handle = setting.double.enqueue(1)
    succeed(setting, setting.claim())
    setting.store.replies_to_lose = 1
    completed = as_completed([handle])
    with pytest.raises(StoreUnavailable):
        list(completed)
    assert [each.result() for each in completed] == [2]
