"""Following recorded tasks: status, result, history, progress, log, cancel, prioritize, why."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import Retry, TaskHandle
from holdfast.core import lifecycle
from holdfast.core.task import Failure, LogLine, Progress, State
from holdfast.errors import (
    BadDuration,
    BadOption,
    Refused,
    ResultTimeout,
    StoreUnavailable,
    TaskCancelled,
    TaskFailed,
    UnknownTask,
)
from tests.producer.setting import Setting, double


def test_a_result_is_waited_for(setting: Setting) -> None:
    handle = setting.double.enqueue(21)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handle.result, "30s")
        task = setting.claim()
        setting.settle(lifecycle.ack(task.task_id, task.token, b"42"))
        assert waiting.result(30) == 42
    assert handle.wait().state is State.SUCCEEDED
    (attempt,) = handle.history()
    assert attempt.outcome == "succeeded"
    assert setting.app.handle(handle.task_id, str).task_id == handle.task_id


def test_a_wait_that_the_store_did_not_answer_can_be_repeated(setting: Setting) -> None:
    handle = setting.double.enqueue(21)
    task = setting.claim()
    setting.settle(lifecycle.ack(task.task_id, task.token, b"42"))
    setting.store.replies_to_lose = 1
    with pytest.raises(StoreUnavailable):
        handle.result(10)
    assert handle.result(10) == 42


def test_a_result_that_is_not_there_in_time_is_a_timeout(setting: Setting) -> None:
    handle = setting.double.enqueue(1)
    for timeout in ("50ms", 0):
        with pytest.raises(ResultTimeout) as caught:
            handle.result(timeout)
        assert str(caught.value) == (
            f"task {handle.task_id} did not finish within {timeout or '0ms'} (state: ready; no worker is running for "
            f"queue default). It is still queued in {setting.store.url}."
        )
        assert (caught.value.task_id, caught.value.state) == (handle.task_id, State.READY)
        assert caught.value.why == "No worker is running for queue default."
    with pytest.raises(BadDuration, match=r"^timeout: 'soon' is not a duration"):
        handle.wait("soon")


def test_a_timeout_while_the_task_runs_names_its_worker(setting: Setting) -> None:
    handle = setting.double.enqueue(1)
    setting.claim()
    with pytest.raises(ResultTimeout, match=r"\(state: claimed; worker w has been running .* It is still running in "):
        handle.result(0)


def test_a_timeout_without_an_answer_of_the_store_says_so(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = setting.double.enqueue(1)

    async def workers() -> list[Any]:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(setting.store, "workers", workers)
    with pytest.raises(ResultTimeout, match=r"did not finish within 0ms, and sqlite:// does not say why") as caught:
        handle.result(0)
    assert caught.value.why == ""


def test_a_wait_that_no_worker_can_end_is_warned_of_once(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.producer.handle._WARN_AFTER_SECONDS", 0.01)
    handles = [setting.double.enqueue(number) for number in range(2)]
    for handle in handles:
        with pytest.raises(ResultTimeout):
            handle.result("200ms")
    found = [record.getMessage() for record in caplog.records if record.name == "holdfast.producer"]
    assert found == [f"waiting for task {handles[0].task_id} in sqlite://: no worker is running for queue default"]


def test_a_wait_for_a_running_task_is_not_warned_of(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.producer.handle._WARN_AFTER_SECONDS", 0.01)
    handle = setting.double.enqueue(1)
    setting.claim()
    with pytest.raises(ResultTimeout):
        handle.result("100ms")
    assert not [record for record in caplog.records if record.name == "holdfast.producer"]


def test_waiting_asks_less_and_less_often(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 20:
            raise TimeoutError

    monkeypatch.setattr("asyncio.sleep", sleep)
    with pytest.raises(ResultTimeout):
        setting.double.enqueue(1).result()
    assert pauses[0] == 0.005
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.25


def test_a_task_that_failed_says_how(setting: Setting) -> None:
    handle = setting.quiet.enqueue(1)
    setting.fail(Failure("builtins.ValueError", "no such picture"))
    with pytest.raises(TaskFailed) as caught:
        handle.result()
    assert str(caught.value) == (
        f"task {handle.task_id} (quiet) is dead_lettered (max_attempts) after 1 attempt: ValueError: no such picture"
    )


def test_a_waiting_task_can_be_cancelled_and_again(setting: Setting) -> None:
    handle = setting.double.enqueue(1)
    assert handle.cancel("changed my mind") is True
    assert handle.cancel() is True
    assert handle.status().state is State.CANCELLED
    with pytest.raises(TaskCancelled, match=rf"^task {handle.task_id} \(double\) was cancelled: changed my mind$"):
        handle.result()


def test_a_running_task_is_told_and_goes_on_until_it_stops(setting: Setting) -> None:
    handle = setting.double.enqueue(1)
    setting.claim()
    assert handle.cancel() is False
    assert handle.status().cancel_requested


def test_a_task_that_has_ended_cannot_be_cancelled(setting: Setting) -> None:
    handle = setting.double.enqueue(1)
    task = setting.claim()
    setting.settle(lifecycle.ack(task.task_id, task.token, b"2"))
    with pytest.raises(Refused, match=rf"^task {handle.task_id} is succeeded: it has ended and cannot be cancelled$"):
        handle.cancel()


def test_a_waiting_task_gets_another_place_and_a_running_one_has_none(setting: Setting) -> None:
    first, second = setting.double.enqueue(1), setting.double.enqueue(2)
    second.prioritize(5)
    assert second.status().priority == 5
    assert setting.claim().task_id == second.task_id
    with pytest.raises(Refused, match=rf"^task {second.task_id} is claimed: only a task that waits has a place"):
        second.prioritize(6)
    for wrong in (101, True, "5"):
        with pytest.raises(BadOption, match=r"from -100 to 100"):
            first.prioritize(wrong)  # type: ignore[arg-type]


def test_progress_and_log_are_those_of_the_run(setting: Setting) -> None:
    handle = setting.double.enqueue(1)
    assert (handle.progress(), handle.log()) == (Progress(), ())
    lines = (LogLine(1, "info", "begun"), LogLine(2, "warning", "slow"))
    setting.tell(setting.claim(), Progress(done=1, total=3, log=lines))
    assert (handle.progress().done, handle.progress().total) == (1, 3)
    assert handle.log() == lines


def test_the_log_of_a_failed_run_stays_with_it_and_is_shown_once(setting: Setting) -> None:
    handle = setting.retried.enqueue(1)
    first, second = LogLine(1, "info", "begun"), LogLine(9, "info", "begun")
    task = setting.claim()
    setting.tell(task, Progress(log=(first,)))
    setting.fail(Failure("builtins.ValueError", "no", log=(first,)), task)
    assert handle.log() == (first,)
    task = setting.claim_again()
    assert handle.log() == (first,)
    setting.tell(task, Progress(log=(second,)))
    assert handle.log() == (first, second)
    setting.settle(lifecycle.ack(task.task_id, task.token, b"2"))
    assert handle.log() == (first, second)


@pytest.mark.parametrize(
    "ask",
    [
        lambda handle: handle.status(),
        lambda handle: handle.result(10),
        lambda handle: handle.history(),
        lambda handle: handle.cancel(),
        lambda handle: handle.prioritize(1),
        lambda handle: handle.progress(),
        lambda handle: handle.log(),
        lambda handle: handle.why(),
    ],
)
def test_an_unknown_task_is_an_error_not_pending(setting: Setting, ask: Callable[[TaskHandle[Any]], object]) -> None:
    with pytest.raises(UnknownTask, match=rf"{'0' * 32}"):
        ask(setting.app.handle("0" * 32))


def test_why_is_answered_in_words(setting: Setting) -> None:
    assert setting.double.enqueue(1).why() == "No worker is running for queue default."


def test_a_task_type_without_dead_letters_ends_as_failed(setting: Setting) -> None:
    failing = setting.app.task(name="failing", retry=Retry(max_attempts=1, dead_letter=False))(double)
    handle = failing.enqueue(1)
    setting.fail(Failure("builtins.ValueError", "bad luck", ""))
    assert (handle.status().state, handle.status().reason) == (State.FAILED, "max_attempts")
    with pytest.raises(TaskFailed, match="is failed"):
        handle.result(timeout=5)
