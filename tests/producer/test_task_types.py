"""Declaring task types: names, options, and what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Retry
from holdfast.core.retry import DEFAULT_POLICY, RunPolicy
from holdfast.errors import BadArguments, BadDuration, BadName, BadOption, HoldfastError, UnknownTask
from tests.support import environment


@pytest.fixture
def app() -> Iterator[Holdfast]:
    with Holdfast("sqlite://") as app:
        yield app


def resize(url: str, width: int = 800) -> str:
    """Resizes."""
    return f"{url}@{width}"


async def fetch(url: str) -> bytes:
    return url.encode()


class Holder:
    @staticmethod
    def method(number: int) -> int:
        return number


NAIVE = datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None)


# -- names ---------------------------------------------------------------------------------------------------


def test_a_task_type_is_named_after_module_and_function(app: Holdfast) -> None:
    assert app.task(resize).name == f"{__name__}.resize"
    assert app.task(Holder.method).name == f"{__name__}.Holder.method"
    assert app.task(name="images.fetch")(fetch).name == "images.fetch"
    assert list(app.task_types) == [f"{__name__}.resize", f"{__name__}.Holder.method", "images.fetch"]


@pytest.mark.parametrize(
    "run", [["tasks_here.py"], ["-m", "tasks_here"], ["-m", "package.tasks_here"], ["-m", "package"]]
)
def test_a_module_that_is_run_gives_the_same_names_as_one_that_is_imported(tmp_path: Path, run: list[str]) -> None:
    code = "import holdfast\napp = holdfast.Holdfast('sqlite://')\n@app.task\ndef go() -> None: ...\nprint(go.name)\n"
    (tmp_path / "package").mkdir()
    for name in ("tasks_here.py", "package/tasks_here.py", "package/__main__.py"):
        (tmp_path / name).write_text(code)
    done = subprocess.run(
        [sys.executable, *run], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == f"{run[-1].removesuffix('.py')}.go"


def test_a_task_type_of_another_app_keeps_its_name(app: Holdfast) -> None:
    with Holdfast("sqlite://") as other:
        there = other.task(name="mail.send")(lambda to: to)
        assert app.task(there).name == "mail.send"
        assert app.task(name="mail.again")(there).name == "mail.again"


def test_functions_that_cannot_be_found_again_need_a_name(app: Holdfast) -> None:
    def local() -> None: ...

    assert app.task(name="local")(local).name == "local"
    refused: list[tuple[Callable[..., Any], str]] = [
        (local, "the local function 'local' cannot be found again by its name: declare it with @app.task(name=...)"),
        (lambda: None, "a lambda cannot be found again by its name: declare it with @app.task(name=...)"),
        (functools.partial(resize, "a"), "has no name of its own: declare it with @app.task(name=...)"),
    ]
    for function, text in refused:
        with pytest.raises(BadName) as caught:
            app.task(function)
        assert str(caught.value).endswith(text)


def test_a_name_can_be_declared_once(app: Holdfast) -> None:
    app.task(resize)
    with pytest.raises(BadName, match=r"resize' is declared twice in this app: give one of them another name=$"):
        app.task(resize)


@pytest.mark.parametrize(
    ("declare", "error", "text"),
    [
        (lambda app: app.task(name="a b")(resize), BadName, "task type name 'a b' is refused: use 1 to 128 of "),
        (lambda app: app.task(queue="a b"), BadName, "queue name 'a b' is refused: use 1 to 128 of "),
        (lambda app: app.task(priority=101), BadOption, "priority 101 is refused: use a whole number from -100 to 100"),
        (lambda app: app.task(retry=5), BadOption, "retry: 5 is not a Retry; write retry=Retry(max_attempts=3)"),
        (lambda app: app.task(timeout=-1), BadDuration, "timeout: -1 is out of range; "),
        (lambda app: app.task(run="async")(resize), BadOption, "run: 'async' is refused for "),
        (lambda app: app.task(run="thread")(fetch), BadOption, "run: 'thread' is refused for "),
        (lambda app: app.task(run="fork")(fetch), BadOption, "run: 'fork' is refused for "),
        (lambda app: app.task("images"), BadOption, "@app.task takes a function, not 'images'; options need names, "),
        (lambda app: app.handle("42"), UnknownTask, "'42' is not a task_id: a task_id is 32 hex digits, "),
        (lambda app: app.handle("0" * 32, int | Holder), BadOption, f"task {'0' * 32}: a result cannot be read from "),
        (lambda app: app.enqueue_many(["a"]), BadOption, "enqueue_many takes prepared calls, as in "),
        (lambda _: Holdfast(lease="10ms"), BadOption, "lease: '10ms' is out of range; it must be between 1s and 1d"),
        (lambda _: Holdfast(lease="soon"), BadDuration, "lease: 'soon' is not a duration; "),
        (lambda _: Holdfast(result_ttl=-1), BadDuration, "result_ttl: -1 is out of range; "),
        (lambda _: Holdfast(max_payload="1k"), BadOption, "max_payload: '1k' is not a number of bytes, such as 262144"),  # type: ignore[arg-type]
        (lambda _: Holdfast(max_payload=2**30), BadOption, "max_payload: 1,073,741,824 is too large, the limit is "),
        (lambda _: Holdfast(queue=""), BadName, "queue name '' is refused: "),
    ],
)
def test_wrong_declarations_are_refused_in_one_line(
    app: Holdfast, declare: Callable[[Any], object], error: type[HoldfastError], text: str
) -> None:
    with pytest.raises(error) as caught:
        declare(app)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


# -- a plain function still ----------------------------------------------------------------------------------


def test_calling_a_task_type_calls_the_function(app: Holdfast) -> None:
    declared, declared_async = app.task(resize), app.task(queue="slow")(fetch)
    assert declared("cat.jpg", width=3) == "cat.jpg@3"
    assert asyncio.run(declared_async("cat.jpg")) == b"cat.jpg"
    assert (declared.is_async, declared_async.is_async) == (False, True)
    assert (declared.__name__, declared.__doc__, declared.function) == ("resize", "Resizes.", resize)  # type: ignore[attr-defined]


def test_arguments_named_like_our_own_parameters_are_passed_on(app: Holdfast) -> None:
    def clash(self: int, args: int, kwargs: int) -> tuple[int, int, int]:
        return self, args, kwargs

    task_type = app.task(name="clash")(clash)
    assert task_type(self=1, args=2, kwargs=3) == (1, 2, 3)
    assert task_type.prepare(self=1, args=2, kwargs=3).payload == b'{"self":1,"args":2,"kwargs":3}'


# -- options -------------------------------------------------------------------------------------------------


def test_options_come_from_the_app_then_the_task_type_then_the_call() -> None:
    app = Holdfast("sqlite://", queue="main", retry=Retry(max_attempts=7))
    plain = app.task(name="plain")(resize)
    special = app.task(name="special", queue="images", priority=3, retry=Retry(max_attempts=2))(resize)
    assert (plain.queue, plain.priority, plain.policy) == ("main", 0, RunPolicy(max_attempts=7))
    assert (special.queue, special.priority, special.policy) == ("images", 3, RunPolicy(max_attempts=2))
    call = special.using(priority=9, headers={"trace": "1"}).using(queue="other").prepare("a").options
    assert (call.queue, call.priority, call.policy.max_attempts, call.headers) == ("other", 9, 2, {"trace": "1"})
    assert (special.queue, special.priority) == ("images", 3)


def test_a_task_type_cannot_be_changed(app: Holdfast) -> None:
    declared = app.task(resize)
    with pytest.raises(dataclasses.FrozenInstanceError):
        declared.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        app.task_types["other"] = declared  # type: ignore[index]


def test_times_are_kept_in_milliseconds(app: Holdfast) -> None:
    declared = app.task(resize)
    assert declared.using(delay="2h").prepare("a").options.delay_ms == 7_200_000
    at = datetime(1970, 1, 2, 1, tzinfo=timezone(timedelta(hours=1)))
    assert declared.using(run_at=at).prepare("a").options.run_at_ms == 86_400_000
    later = declared.using(run_at=at).using(delay=1).prepare("a").options
    assert (later.run_at_ms, later.delay_ms) == (None, 1000)
    assert declared.using(run_at=datetime(1960, 1, 1, tzinfo=UTC)).prepare("a").options.run_at_ms == 0


def test_the_default_policy_is_recorded_when_nobody_says_otherwise(app: Holdfast) -> None:
    assert app.task(resize).policy == DEFAULT_POLICY


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"delay": "soon"}, BadDuration, 'delay: \'soon\' is not a duration; write "250ms", "30s", "10m", '),
        ({"delay": -1}, BadDuration, "delay: -1 is out of range; it must be between 0 and 100 years"),
        ({"priority": 3.5}, BadOption, "priority 3.5 is refused: use a whole number from -100 to 100"),
        ({"queue": "no spaces"}, BadName, "queue name 'no spaces' is refused: use 1 to 128 of "),
        ({"request_id": "no spaces"}, BadName, "request_id 'no spaces' is refused: use 1 to 200 visible ASCII "),
        (
            {"run_at": NAIVE},
            BadOption,
            "run_at: 2030-01-01T00:00:00 has no time zone; add one, such as ",
        ),
        ({"run_at": "tomorrow"}, BadOption, "run_at: 'tomorrow' is not a datetime; write datetime(2030, 1, 1, "),
        ({"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 3}, BadOption, "delay and run_at exclude each other: "),
        ({"retry": {"max_attempts": 3}}, BadOption, "retry: {'max_attempts': 3} is not a Retry; "),
        ({"timeout": "-5s"}, BadDuration, "timeout: '-5s' is not a duration; write "),
        ({"timeout": -5}, BadDuration, "timeout: -5 is out of range; it must be between 0 and 100 years"),
        ({"timeout": 0}, BadOption, 'timeout: 0 leaves no time at all; write "30s" or "5m", or leave it out'),
        ({"expires": 0}, BadOption, "expires: 0 leaves no time at all; "),
        ({"hard_timeout": "0s"}, BadOption, "hard_timeout: '0s' leaves no time at all; "),
        (
            {"expires": "1h", "delay": "1h"},
            BadOption,
            "expires: 1h is not longer than the delay of 1h: it counts from the enqueue, so the task could never start",
        ),
        (
            {"timeout": "10s", "hard_timeout": "5s"},
            BadOption,
            "hard_timeout: '5s' is shorter than the timeout of 10s: the run would be killed before it is asked to end",
        ),
        ({"headers": "trace"}, BadOption, "headers: 'trace' is not a mapping of text to text"),
        ({"headers": {"trace": 1}}, BadOption, "headers: 'trace': 1 is not text to text"),
        ({"headers": {"trace": "\ud83d"}}, BadOption, "headers: 'trace': NUL and halves of surrogate pairs cannot be "),
        ({"headers": {"a\0": "b"}}, BadOption, "headers: 'a\\x00': NUL and halves of surrogate pairs cannot be "),
        ({"headers": {"trace": "x" * 9_000}}, BadOption, "headers: 9,005 bytes, the limit is 8,192; put data into "),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    app: Holdfast, options: dict[str, Any], error: type[HoldfastError], text: str
) -> None:
    with pytest.raises(error) as caught:
        app.task(resize).using(**options)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


def test_wrong_arguments_are_refused_before_anything_is_opened(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/never.db")
    declared = app.task(name="resize")(resize)
    for call in (declared.enqueue, declared.prepare):
        with pytest.raises(BadArguments, match=r"^resize\(\): unknown argument 'wdith'; it takes url, width=800$"):
            call("cat.jpg", wdith=3)  # type: ignore[call-arg]
    assert list(tmp_path.iterdir()) == []


def test_time_limits_ride_in_the_policy_of_the_call(app: Holdfast) -> None:
    declared = app.task(timeout="5m", expires="1h", retry=Retry(max_attempts=3))(resize)
    expected = RunPolicy(max_attempts=3, timeout_ms=300_000, hard_timeout_ms=330_000, expires_ms=3_600_000)
    assert declared.policy == expected
    shorter = declared.using(timeout=1, hard_timeout=2).prepare("a").options.policy
    assert (shorter.timeout_ms, shorter.hard_timeout_ms, shorter.expires_ms) == (1_000, 2_000, 3_600_000)
    assert shorter.max_attempts == 3
    assert declared.using(retry=Retry(max_attempts=7)).prepare("a").options.policy.timeout_ms == 300_000
    assert app.task(name="hard", hard_timeout="1s")(resize).policy == RunPolicy(hard_timeout_ms=1_000)


def test_a_task_type_says_whether_its_tasks_run_alone(app: Holdfast) -> None:
    assert app.task(run="process", name="cpu")(resize).alone
    assert app.task(run="process", name="async-cpu")(fetch).alone
    assert not app.task(run="thread", name="thread")(resize).alone
    assert not app.task(run="async", name="async")(fetch).alone
    assert not app.task(resize).alone


class Called:
    """An object that is called as an async function is."""

    async def __call__(self, number: int) -> int:
        return number + 1


def test_an_object_with_an_async_call_is_awaited(app: Holdfast) -> None:
    for function in (Called(), functools.partial(Called(), 1), Called().__call__):
        task_type = app.task(name=f"called-{len(app.task_types)}")(function)
        assert task_type.is_async
    assert asyncio.run(app.task_types["called-0"](1)) == 2


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


async def awaited_numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


class Generating:
    """Its call makes a generator."""

    def __call__(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize("function", [numbers, awaited_numbers, functools.partial(numbers, 3), Generating()])
def test_a_generator_is_refused_where_it_is_declared(app: Holdfast, function: Any) -> None:
    with pytest.raises(BadOption, match="a generator cannot be a task"):
        app.task(name="generates")(function)
    assert not app.task_types
