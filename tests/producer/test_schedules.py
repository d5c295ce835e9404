"""`app.schedules`: made, looked at, changed and run while everything runs, sync and async, with lost replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Holdfast
from holdfast.core import lifecycle
from holdfast.core.schedule.record import Overlap, Schedule
from holdfast.errors import BadName, BadOption, BadSchedule, Refused, UnknownSchedule, UnknownTaskType
from holdfast.stores import documents
from holdfast.stores.contract import DocumentResult, DocumentWrite
from holdfast.stores.decorate import PassingStore

HOUR_MS = 3_600_000


@pytest.fixture
def app(url: str) -> Iterator[Holdfast]:
    with make_app(url) as made:
        yield made


@pytest.fixture
def local() -> Iterator[Holdfast]:
    with make_app("sqlite://") as made:
        yield made


def make_app(url: str) -> Holdfast:
    app = Holdfast(url)
    app.task(name="report", queue="reports")(report)
    app.task(name="tidy")(tidy)
    return app


def report(region: str) -> str:
    return region


def tidy() -> int:
    return 1


def test_a_schedule_from_its_making_to_its_end(app: Holdfast) -> None:
    made = app.schedules.put("eu", app.task_types["report"].prepare("eu"), cron="0 3 * * *", timezone="Europe/Berlin")
    app.schedules.put("tidy", app.task_types["tidy"], every="1h", overlap="skip")
    assert (made.call.type, made.call.queue, made.call.payload) == ("report", "reports", b'{"region":"eu"}')
    assert app.schedules.get("eu") == made
    assert {each.name for each in app.schedules.list()} == {"eu", "tidy"}

    times = app.schedules.next("eu", 3)
    assert [(time.hour, time.minute) for time in times] == [(3, 0)] * 3
    assert times[0].astimezone(UTC).timestamp() * 1000 == made.next_at_ms
    assert app.schedules.next("tidy", 2)[1] - app.schedules.next("tidy", 2)[0] == timedelta(hours=1)

    edited = app.schedules.edit("eu", cron="30 3 * * *", priority=7)
    assert (edited.timing.timezone, edited.call.priority, edited.call.queue) == ("Europe/Berlin", 7, "reports")
    assert edited.next_at_ms == (made.next_at_ms or 0) + HOUR_MS // 2
    other = app.schedules.edit("eu", app.task_types["report"].prepare("us"), missed="skip")
    assert (other.call.payload, other.call.priority, other.next_at_ms) == (b'{"region":"us"}', 0, edited.next_at_ms)

    assert app.schedules.pause("eu").next_at_ms is None
    assert app.schedules.next("eu")[0].minute == 30  # what it would have
    assert app.schedules.resume("eu").next_at_ms == edited.next_at_ms
    app.schedules.remove("eu")
    with pytest.raises(UnknownSchedule, match="no schedule eu in"):
        app.schedules.get("eu")


def test_putting_the_same_again_changes_nothing(app: Holdfast) -> None:
    first = app.schedules.put("tidy", app.task_types["tidy"], every="1h")
    assert app.schedules.put("tidy", app.task_types["tidy"], every="1h") == first
    app.schedules.pause("tidy")
    other = app.schedules.put("tidy", app.task_types["tidy"], every="2h")
    assert (other.paused, other.timing.every_ms, other.version) == (True, 2 * HOUR_MS, 3)


def test_run_now_makes_a_task_besides_the_occurrences(app: Holdfast) -> None:
    before = app.schedules.put("tidy", app.task_types["tidy"], every="1h")
    handle = app.schedules.run_now("tidy")
    task = handle.status()
    assert (task.type, task.headers, task.request_id) == ("tidy", {"schedule": "tidy"}, None)
    after = app.schedules.get("tidy")
    assert (after.next_at_ms, after.last_at_ms, after.last_task_id) == (before.next_at_ms, None, handle.task_id)
    assert app.schedules.run_now("tidy") != handle


def test_run_now_is_refused_where_tasks_must_not_overlap(app: Holdfast) -> None:
    app.schedules.put("tidy", app.task_types["tidy"], every="1h", overlap="queue")
    app.schedules.pause("tidy")  # does not keep anybody from running it by hand
    handle = app.schedules.run_now("tidy")
    with pytest.raises(Refused, match=f"does not overlap, and its task {handle.task_id} is ready"):
        app.schedules.run_now("tidy")
    handle.cancel()
    assert app.schedules.run_now("tidy") != handle


def test_everything_can_be_awaited(local: Holdfast) -> None:
    async def run() -> None:
        schedules, tidy = local.schedules, local.task_types["tidy"]
        made = await schedules.aput("tidy", tidy, every="1h")
        assert await schedules.aget("tidy") == made
        assert await schedules.alist() == [made]
        assert len(await schedules.anext("tidy", 7)) == 7
        assert (await schedules.aedit("tidy", overlap="skip")).timing.overlap is Overlap.SKIP
        assert (await schedules.apause("tidy")).paused
        assert not (await schedules.aresume("tidy")).paused
        assert (await (await schedules.arun_now("tidy")).astatus()).type == "tidy"
        await schedules.aremove("tidy")
        assert await schedules.alist() == []
        await local.aclose()

    asyncio.run(run())


def test_a_declared_schedule_is_edited_and_not_put_over(local: Holdfast) -> None:
    made = local.schedules.put("tidy", local.task_types["tidy"], every="1h")
    declared = replace(made, source="shop:app", version=2)
    assert local._link.run(documents.put_schedule(local.store, "tidy", declared, 1))
    with pytest.raises(Refused, match="schedule tidy is declared in shop:app: edit it, or change it there"):
        local.schedules.put("tidy", local.task_types["tidy"], every="2h")
    assert local.schedules.edit("tidy", every="2h").source == "shop:app"


@pytest.mark.parametrize(
    ("call", "error", "advice"),
    [
        (lambda app: app.schedules.put("s", app.task_types["tidy"]), BadSchedule, "either a cron line or an interval"),
        (lambda app: app.schedules.put("s", app.task_types["tidy"], cron="x"), BadSchedule, "neither five"),
        (lambda app: app.schedules.put("s", app.task_types["tidy"], cron="@daily", every=5), BadSchedule, "exclude"),
        (lambda app: app.schedules.put("s", "tidy", every=5), BadOption, "prepared call, as in"),
        (lambda app: app.schedules.put("s", tidy, every=5), BadOption, "prepared call, as in"),
        (lambda app: app.schedules.put("no way", app.task_types["tidy"], every=5), BadName, "schedule name 'no way'"),
        (lambda app: app.schedules.put("s", Holdfast("sqlite://").task(tidy), every=5), UnknownTaskType, "it has rep"),
        (lambda app: app.schedules.put("s", app.task_types["tidy"].using(request_id="x"), every=5), BadOption, "reque"),
        (lambda app: app.schedules.pause("nix"), UnknownSchedule, "no schedule nix in sqlite://"),
        (lambda app: app.schedules.run_now("nix"), UnknownSchedule, "no schedule nix"),
        (lambda app: app.schedules.edit("nix", every="1m"), UnknownSchedule, "no schedule nix"),
        (lambda app: app.schedules.remove("nix"), UnknownSchedule, "no schedule nix"),
        (lambda app: app.schedules.get(""), BadName, "schedule name ''"),
        (lambda app: app.schedules.edit("tidy", jitter="1h"), BadSchedule, "not shorter than"),
        (lambda app: app.schedules.edit("tidy", priority=1_000), BadOption, "priority 1000 is refused"),
        (lambda app: app.schedules.next("tidy", 0), BadOption, "ask for 1 to"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    local: Holdfast, call: Callable[[Holdfast], Any], error: type[Exception], advice: str
) -> None:
    before = local.schedules.put("tidy", local.task_types["tidy"], every="1h")
    with pytest.raises(error) as caught:
        call(local)
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(local.schedules.list()) == [before]


class Forgetful(PassingStore):
    """Loses the first replies, and repeats the call each time, as an engine does."""

    losses = 0

    async def put(self, write: DocumentWrite) -> DocumentResult:
        while self.losses:
            self.losses -= 1
            await self.inner.put(write)
        return await self.inner.put(write)


def test_a_lost_reply_makes_no_second_task(local: Holdfast) -> None:
    forgetful = Forgetful(local.store)
    local._link.store = lambda: forgetful
    local.schedules.put("tidy", local.task_types["tidy"], every="1h", overlap="skip")
    forgetful.losses = 2
    handle = local.schedules.run_now("tidy")
    (counts,) = local._link.run(local.store.counts())
    assert sum(counts.states.values()) == 1
    assert local.schedules.get("tidy").last_task_id == handle.task_id
    forgetful.losses = 1
    assert local.schedules.edit("tidy", every="2h").timing.every_ms == 2 * HOUR_MS
    forgetful.losses = 1
    assert local.schedules.pause("tidy").paused


def test_a_change_that_somebody_else_was_faster_with_is_made_on_top_of_it(local: Holdfast) -> None:
    class Raced(PassingStore):
        rival: Callable[[Schedule], Schedule] | None = None

        async def put(self, write: DocumentWrite) -> DocumentResult:
            rival, self.rival = self.rival, None
            current = await documents.schedule(self.inner, write.name)
            if rival is not None and current is not None:
                await documents.put_schedule(self.inner, write.name, rival(current), current.version)
            return await self.inner.put(write)

    raced = Raced(local.store)
    local._link.store = lambda: raced
    local.schedules.put("tidy", local.task_types["tidy"], every="1h")
    raced.rival = lambda now: replace(now, call=replace(now.call, queue="other"), version=now.version + 1)
    after = local.schedules.edit("tidy", every="2h")
    assert (after.call.queue, after.timing.every_ms, after.version) == ("other", 2 * HOUR_MS, 3)
    raced.rival = lambda now: replace(now, paused=True, next_at_ms=None, version=now.version + 1)
    local.schedules.run_now("tidy")
    assert local.schedules.get("tidy").paused


def test_the_task_of_run_now_runs_as_any_other(local: Holdfast) -> None:
    local.schedules.put("tidy", local.task_types["tidy"], every="1h")
    handle = local.schedules.run_now("tidy")
    verdicts = local._link.run(local.store.apply([lifecycle.cancel(handle.task_id)]))
    assert [verdict.applied for verdict in verdicts] == [True]
