"""Calls and options of Celery, RQ and Dramatiq get an error that names ours, and are no attributes to a program."""

from __future__ import annotations

import asyncio
import copy
import inspect
from typing import Any

import pytest

from holdfast import Holdfast, Retry
from holdfast.core.habits import APP_HABITS, HANDLE_HABITS, OPTION_HABITS, TASK_HABITS
from holdfast.errors import BadArguments, BadOption, BadResult, UsageError
from holdfast.producer.task_type import _CALL_OPTIONS, TaskType
from tests.producer.setting import Setting


@pytest.mark.parametrize("name", ["delay", "apply_async", "send", "defer", "s", "si"])
def test_a_call_of_celery_names_ours(setting: Setting, name: str) -> None:
    task: Any = setting.double
    with pytest.raises(
        AttributeError, match=rf"^the task type double has no attribute '{name}': write double\.(enqueue|prepare)\("
    ):
        getattr(task, name)(1)
    assert not hasattr(task, name)
    assert copy.copy(task).name == "double"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("as_completed", "write holdfast.as_completed(handles)"),
        ("enqueue", "write send.enqueue(...) of the task `send`, or app.enqueue_many(...) of prepared calls"),
    ],
)
def test_a_call_that_is_not_one_of_the_app_names_the_right_one(setting: Setting, name: str, advice: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(setting.app, name)
    assert str(raised.value) == f"Holdfast has no attribute {name!r}: {advice}"


def test_what_no_library_has_is_an_attribute_error_as_ever(setting: Setting) -> None:
    for thing in (setting.double, setting.app, setting.double.enqueue(1)):
        with pytest.raises(AttributeError, match=r" has no attribute 'nothing'$"):
            thing.nothing  # type: ignore[union-attr]  # noqa: B018


def test_none_of_them_hides_what_is_there(setting: Setting) -> None:
    handle = setting.double.enqueue(1)
    assert [name for name in TASK_HABITS if name in dir(setting.double)] == ["options"]
    assert [name for name in HANDLE_HABITS if name in dir(handle)] == []
    assert [name for name in APP_HABITS if name in dir(setting.app)] == []
    assert inspect.signature(TaskType.using).parameters.keys() - {"self"} == _CALL_OPTIONS
    assert not OPTION_HABITS.keys() & (_CALL_OPTIONS | inspect.signature(Retry).parameters.keys() - {"base"})


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda app, task: task.using(countdown=5), "using() has no option 'countdown': write delay='10s'"),
        (lambda app, task: task.using(eta=5), "using() has no option 'eta': write run_at=datetime("),
        (
            lambda app, task: app.task(max_retries=3),
            "@app.task() has no option 'max_retries': write retry=Retry(max_att",
        ),
        (lambda app, task: app.task(bind=True), "@app.task() has no option 'bind': leave it out and write current()"),
        (lambda app, task: app.task(autoretry_for=()), "@app.task() has no option 'autoretry_for': every exception is"),
        (lambda app, task: app.task(print, bind=True), "@app.task() has no option 'bind'"),
        (lambda app, task: app.task(queu="mail"), "@app.task() has no option 'queu': did you mean queue?"),
        (lambda app, task: app.every("1m", countdown=5), "a schedule has no option 'countdown': write delay='10s'"),
        (lambda app, task: Retry(max_retries=3), "Retry() has no option 'max_retries': write retry=Retry(max_attempts"),  # type: ignore[call-arg]
        (lambda app, task: Holdfast(broker="redis://"), "Holdfast() has no option 'broker': write Holdfast('redis://"),  # type: ignore[call-arg]
    ],
)
def test_an_option_of_celery_names_ours(setting: Setting, call: Any, text: str) -> None:
    with pytest.raises(BadOption) as caught:
        call(setting.app, setting.double)
    assert str(caught.value).startswith(text)


def test_an_error_of_another_kind_is_not_changed(setting: Setting) -> None:
    with pytest.raises(TypeError, match="positional argument"):
        setting.double.using("mail")  # type: ignore[call-arg]


def test_an_option_among_the_arguments_names_the_right_call(setting: Setting) -> None:
    for call in (setting.double.enqueue, setting.double.prepare):
        with pytest.raises(BadArguments) as caught:
            call(1, delay="1h")  # type: ignore[call-arg]
        assert str(caught.value) == (
            "double(): unknown argument 'delay'; it takes number; "
            "options go through using: double.using(delay='1h').enqueue(...)"
        )
    with pytest.raises(BadArguments, match=r"; 'countdown': write delay='10s'"):
        setting.double.enqueue(1, countdown=3)  # type: ignore[call-arg]


def test_an_awaited_handle_says_how_to_await(setting: Setting) -> None:
    async def main() -> None:
        await setting.double.enqueue(1)  # type: ignore[misc]

    with pytest.raises(UsageError, match=r"is enqueued, and its handle cannot be awaited: write `await task\.aenqueue"):
        asyncio.run(main())


def test_a_handle_as_a_result_is_refused_with_the_fix(setting: Setting) -> None:
    from holdfast.core.arguments import unfit_result

    error = unfit_result(setting.double.enqueue(1), "double()", ValueError())
    assert isinstance(error, BadResult)
    assert str(error) == "double() returned a TaskHandle, which is not JSON: return its task_id"
