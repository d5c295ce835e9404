"""`assert_enqueued` and `assert_not_enqueued`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from holdfast.errors import UsageError
from holdfast.testing import AppTest, assert_enqueued, assert_not_enqueued, in_memory

app = Holdfast("redis://never.invalid:1/0")


@app.task(name="resize")
def resize(path: str, width: int = 100, *sizes: int, **options: str) -> None: ...


@app.task(name="move")
def move(path: str, queue: str) -> None: ...


@pytest.fixture(autouse=True)
def test() -> Iterator[AppTest]:
    with in_memory(app) as test:
        yield test


def test_arguments_are_compared_as_the_function_gets_them() -> None:
    resize.enqueue("cat.jpg")
    (task,) = assert_enqueued(resize, "cat.jpg", 100)
    assert (task.type, task.queue) == ("resize", "default")
    assert_enqueued(resize, path="cat.jpg")
    assert_enqueued(resize.prepare("cat.jpg", width=100), count=1)
    assert_enqueued(resize)
    assert_not_enqueued(resize, "dog.jpg")
    assert_not_enqueued(move)


def test_options_are_compared(test: AppTest) -> None:
    resize.using(queue="images", delay="1h", priority=3).enqueue("cat.jpg", 7, 8, 9, crop="no")
    for _ in range(2):
        assert_enqueued(resize, "cat.jpg", 7, 8, 9, crop="no", queue="images", delay="1h", priority=3, count=1)
        assert_not_enqueued(resize, queue="default")
        assert_not_enqueued(resize, delay="2h")
        assert_not_enqueued(resize, priority=0)
        test.advance("1h")  # it has run now, and was enqueued all the same


def test_a_failure_says_what_was_enqueued_instead() -> None:
    with pytest.raises(AssertionError, match=r"^no task was enqueued as resize\(\.\.\.\); no task of resize was"):
        assert_enqueued(resize)
    resize.using(delay="1h").enqueue("cat.jpg")
    with pytest.raises(AssertionError) as raised:
        assert_enqueued(resize, "dog.jpg", queue="images")
    asked = "no task was enqueued as resize(path='dog.jpg', width=100, sizes=(), options={}) with queue='images'"
    found = "  resize(path='cat.jpg', width=100, sizes=(), options={}) in queue 'default', priority=0, delay='1h'"
    assert str(raised.value).splitlines() == [asked, "enqueued were:", f"{found}, scheduled"]
    with pytest.raises(AssertionError, match=r"1 task was enqueued as resize.*expected 2"):
        assert_enqueued(resize, count=2)
    with pytest.raises(AssertionError, match="1 task was enqueued as resize"):
        assert_not_enqueued(resize)
    assert_enqueued(move, count=0)


def test_a_failure_is_shown_where_the_assertion_is_made() -> None:
    """pytest leaves out frames with this local variable."""
    resize.enqueue("cat.jpg")
    for failing in (lambda: assert_enqueued(move), lambda: assert_not_enqueued(resize)):
        with pytest.raises(AssertionError) as raised:
            failing()
        *_, last = raised.traceback
        assert "__tracebackhide__" in last.locals


def test_wrong_calls_say_what_to_write() -> None:
    with pytest.raises(UsageError, match=r"'queue', which is also an option .*: write assert_enqueued\(move.prepare"):
        assert_enqueued(move, "a", queue="b")
    assert_not_enqueued(move.prepare("a", queue="b"), queue="default")
    with pytest.raises(UsageError, match="takes a task type"):
        assert_enqueued(test_options_are_compared)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has its arguments"):
        assert_enqueued(move.prepare("a", "b"), "a")
