"""The queues of an app's store: looking, pausing, ordering, in both faces."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.priority import AGED_STEP_MS, STRICT_STEP_MS
from holdfast.core.task import State
from holdfast.errors import BadName, BadOption
from tests.producer.setting import Setting


def test_a_queue_is_paused_and_resumed(setting: Setting) -> None:
    setting.double.enqueue(1)
    setting.app.queues.pause("default")
    (queue,) = setting.app.queues.list()
    assert (queue.queue, queue.paused, queue.states[State.READY]) == ("default", True, 1)
    setting.app.queues.resume("default")
    assert not setting.app.queues.list()[0].paused
    setting.claim()


def test_an_order_holds_for_the_tasks_that_wait_already(setting: Setting) -> None:
    plain, urgent = setting.double.enqueue(1), setting.double.using(priority=1).enqueue(2)
    setting.app.queues.set_order("default", "aged", "1h")
    assert setting.app.queues.list()[0].step_ms == 3_600_000
    assert setting.claim().task_id == urgent.task_id
    assert setting.claim().task_id == plain.task_id


def test_an_order_of_a_queue_without_tasks_is_kept_and_listed(setting: Setting) -> None:
    async def order_and_look() -> list[tuple[str, int]]:
        await setting.app.queues.aset_order("empty", "strict")
        return [(queue.queue, queue.step_ms) for queue in await setting.app.queues.alist()]

    assert asyncio.run(order_and_look()) == [("empty", STRICT_STEP_MS)]
    setting.app.queues.set_order("empty", "aged")
    assert all(queue.step_ms == AGED_STEP_MS for queue in setting.app.queues.list())


def test_the_async_face_does_the_same(setting: Setting) -> None:
    async def stop_and_go() -> list[bool]:
        queues, seen = setting.app.queues, []
        await setting.double.aenqueue(1)
        for change in (queues.apause, queues.aresume):
            await change("default")
            seen.append((await queues.alist())[0].paused)
        return seen

    assert asyncio.run(stop_and_go()) == [True, False]


def test_what_cannot_be_is_refused_before_the_store_is_asked(setting: Setting) -> None:
    queues = setting.app.queues
    for call in (queues.pause, queues.resume, lambda name: queues.set_order(name, "strict")):
        with pytest.raises(BadName):
            call("no queue")
    with pytest.raises(BadOption, match="strict has no step"):
        queues.set_order("default", "strict", "5m")
    assert list(queues.list()) == []
