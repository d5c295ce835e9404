"""Failures as events of a real Sentry client, whose transport keeps them here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.transport import Transport

from holdfast import Again, Holdfast, Snooze
from holdfast.contrib.sentry import instrument
from holdfast.core.retry import RunPolicy
from holdfast.core.task import State
from holdfast.worker.loading import opened
from tests.worker.rig import Rig


class Recording(Transport):
    """Keeps the events instead of sending them."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.events: list[Any] = []
        self.flushed = 0

    def capture_envelope(self, envelope: Any) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(event)

    def flush(self, timeout: float, callback: Any = None) -> None:
        self.flushed += 1


@pytest.fixture
def transport() -> Iterator[Recording]:
    recording = Recording()
    with sentry_sdk.isolation_scope():
        dsn = "https://key@sentry.invalid/1"
        sentry_sdk.init(dsn=dsn, transport=recording, release="1", default_integrations=False)
        yield recording
        sentry_sdk.get_client().close()
        sentry_sdk.init(default_integrations=False)  # else it patches Starlette for all tests of this process


def run(
    function: Callable[..., Any], state: State, policy: RunPolicy, payloads: tuple[bytes, ...] = (b"{}",), **how: Any
) -> list[str]:
    """Runs a task of this function for each payload, to this state; their ids."""
    app = Holdfast("sqlite://")
    instrument(app, **how)

    async def scenario() -> list[str]:
        is_async = asyncio.iscoroutinefunction(function)
        rig = Rig(function, is_async=is_async, middlewares=app.middlewares, app=app)
        for payload in payloads:
            await rig.enqueue(1, payload, policy)
        await rig.drain(state)
        await rig.store.close()
        return rig.task_ids

    return asyncio.run(scenario())


def fails() -> None:
    sentry_sdk.add_breadcrumb(message="about to fail")
    raise KeyError("gone")


async def fails_on_the_loop() -> None:
    fails()


@pytest.mark.parametrize("function", [fails, fails_on_the_loop])
def test_a_dead_letter_is_an_error_with_its_task_and_its_breadcrumbs(
    function: Callable[..., Any], transport: Recording
) -> None:
    (task_id,) = run(function, State.DEAD_LETTERED, RunPolicy(max_attempts=1))
    (event,) = transport.events
    assert event["exception"]["values"][-1]["type"] == "KeyError"
    assert event["tags"] == {
        "holdfast.task_id": task_id,
        "holdfast.task_type": "work",
        "holdfast.queue": "default",
        "holdfast.attempt": "1",
        "holdfast.final": "yes",
        "holdfast.reason": "max_attempts",
    }
    assert (event["level"], event["transaction"]) == ("error", "work")
    assert event["breadcrumbs"]["values"][-1]["message"] == "about to fail"


def test_a_failure_that_is_retried_is_a_warning_and_can_be_left_out(transport: Recording) -> None:
    def again() -> None:
        raise Again("1h") from ConnectionError("busy")

    run(again, State.RETRY_PENDING, RunPolicy())
    (event,) = transport.events
    assert (event["level"], event["tags"]["holdfast.final"]) == ("warning", "no")
    assert event["exception"]["values"][-1]["type"] == "ConnectionError"
    run(again, State.RETRY_PENDING, RunPolicy(), retries=False)
    assert len(transport.events) == 1


def test_a_time_limit_is_an_event(transport: Recording) -> None:
    async def sleeps() -> None:
        await asyncio.sleep(60)

    run(sleeps, State.DEAD_LETTERED, RunPolicy(max_attempts=1, timeout_ms=20))
    (event,) = transport.events
    assert event["exception"]["values"][-1]["type"] == "TimedOut"
    assert event["tags"]["holdfast.reason"] == "timed_out"


def test_each_task_has_a_scope_of_its_own(transport: Recording) -> None:
    async def tagged(name: str) -> None:
        sentry_sdk.set_tag("name", name)
        await asyncio.sleep(0.01)
        raise ValueError(name)

    run(tagged, State.DEAD_LETTERED, RunPolicy(max_attempts=1), tuple(b'{"name":"%d"}' % n for n in range(5)))
    told = {event["tags"]["name"]: event["exception"]["values"][-1]["value"] for event in transport.events}
    assert told == {str(n): str(n) for n in range(5)}


def test_what_is_no_failure_is_no_event(transport: Recording) -> None:
    run(lambda: Snooze("1h"), State.SCHEDULED, RunPolicy())
    run(lambda: "done", State.SUCCEEDED, RunPolicy())
    assert transport.events == []


def test_the_last_events_are_sent_before_a_process_ends(transport: Recording) -> None:
    app = Holdfast("sqlite://")
    instrument(app)

    async def scenario() -> None:
        async with opened(app):
            assert transport.flushed == 0

    asyncio.run(scenario())
    assert transport.flushed == 1
