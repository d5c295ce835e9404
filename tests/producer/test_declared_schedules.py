"""Schedules in an app's code: what is declared, what is refused at once, what a deploy does to the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast import Holdfast, Retry
from holdfast.admin import schedules as actions
from holdfast.core.schedule.record import Missed, Overlap, Schedule, ScheduledCall, Timing
from holdfast.errors import BadArguments, BadName, BadOption, BadSchedule, HoldfastError, StoreFull, UnknownTaskType
from holdfast.stores.contract import DocumentResult, DocumentWrite
from holdfast.stores.decorate import PassingStore
from holdfast.testing.kit.harness import SqliteMemoryHarness, StoreHarness
from tests.maintenance.setting import CALL, Rig, on_store

SOURCE = "shop:app"
HOUR_MS = 3_600_000


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("sqlite://")


# -- what is declared -------------------------------------------------------------------------------------------


def test_a_function_is_declared_as_a_task_type_and_as_a_schedule(app: Holdfast) -> None:
    @app.cron(
        "0 3 * * *",
        timezone="Europe/Berlin",
        name="nightly",
        missed="all",
        window="2h",
        overlap="skip",
        jitter="5m",
        queue="reports",
        priority=3,
        retry=Retry(max_attempts=2),
        timeout="10m",
        run="process",
    )
    def nightly(region: str = "eu") -> str:
        return region

    assert nightly() == "eu"
    assert app.task_types["nightly"].alone
    (schedule,) = app.declared_schedules
    assert schedule.name == "nightly"
    assert schedule.timing == Timing(
        cron="0 3 * * *",
        timezone="Europe/Berlin",
        missed=Missed.ALL,
        window_ms=2 * HOUR_MS,
        overlap=Overlap.SKIP,
        jitter_ms=300_000,
    )
    assert (schedule.call.type, schedule.call.queue, schedule.call.priority) == ("nightly", "reports", 3)
    assert (schedule.call.policy.max_attempts, schedule.call.policy.timeout_ms) == (2, 600_000)
    assert schedule.call.payload == b"{}"


def test_a_task_type_can_have_several_schedules_with_arguments_and_options(app: Holdfast) -> None:
    @app.every("10m", name="report-us", args=["us"], queue="america")
    @app.cron("@daily", name="report-eu", args={"region": "eu"}, timezone=ZoneInfo("Europe/Berlin"))
    @app.task(name="report", queue="reports")
    async def report(region: str) -> None: ...

    calls = {each.name: each.call for each in app.declared_schedules}
    assert calls["report-eu"] == ScheduledCall(type="report", queue="reports", payload=b'{"region":"eu"}')
    assert calls["report-us"] == ScheduledCall(type="report", queue="america", payload=b'{"region":"us"}')
    assert report.queue == "reports"
    assert app.declared_schedules[0].timing.timezone == "Europe/Berlin"


def test_a_schedule_is_called_like_its_type(app: Holdfast) -> None:
    scheduled = app.every(60)(tidy)
    assert [each.name for each in app.declared_schedules] == [scheduled.name]
    assert scheduled.name == "tests.producer.test_declared_schedules.tidy"


def report(region: str) -> None: ...


def tidy() -> None: ...


def _twice(app: Holdfast) -> None:
    app.every("1m", name="same")(app.task(name="tidy")(tidy))
    app.every("1m", name="same")(app.task_types["tidy"])


def _foreign(app: Holdfast) -> None:
    app.every("1m")(Holdfast("sqlite://").task(name="elsewhere")(tidy))


def _run_of_a_type(app: Holdfast) -> None:
    app.every("1m", run="process")(app.task(name="tidy")(tidy))


def _delayed(app: Holdfast) -> None:
    app.every("1m")(app.task(name="tidy")(tidy).using(delay="5s"))


@pytest.mark.parametrize(
    ("declare", "error", "advice"),
    [
        (lambda app: app.cron("0 3 * *"), BadSchedule, "neither five fields nor six"),
        (lambda app: app.cron("0 3 * * *", timezone="Europe/Berln"), BadSchedule, "did you mean Europe/Berlin?"),
        (lambda app: app.every("500ms"), BadSchedule, "the shortest interval is 1s"),
        (lambda app: app.every(-1), BadSchedule, "every: -1 is out of range"),
        (lambda app: app.every("1m", jitter="1m"), BadSchedule, "not shorter than the 1m"),
        (lambda app: app.every("1m", overlap="never"), BadSchedule, "allow or skip or queue"),
        (lambda app: app.every("1m", often=True), BadOption, "a schedule has no option 'often'"),
        (lambda app: app.every("1m")(report), BadArguments, "missing argument 'region'; it takes region; a schedule"),
        (lambda app: app.every("1m", args={"place": 1})(report), BadArguments, "unknown argument 'place'"),
        (lambda app: app.every("1m", args=[7])(report), BadArguments, "region: Expected `str`, got `int`"),
        (lambda app: app.every("1m", args="eu")(report), BadArguments, "neither a mapping"),
        (lambda app: app.every("1m", name="no way")(tidy), BadName, "task type name 'no way' is refused"),
        (lambda app: app.every("1m", timeout="-1s")(tidy), HoldfastError, "timeout"),
        (lambda app: app.every("1m")("tidy"), BadOption, "takes a function"),
        (_twice, BadName, "schedule 'same' is declared twice"),
        (_foreign, UnknownTaskType, "this app has no task type elsewhere"),
        (_run_of_a_type, BadOption, "run belongs to the task type"),
        (_delayed, BadOption, "delay: the schedule decides when"),
    ],
)
def test_what_cannot_be_is_refused_when_declared(
    app: Holdfast, declare: Callable[[Any], Any], error: type[Exception], advice: str
) -> None:
    with pytest.raises(error) as caught:
        declare(app)
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)


# -- deploys ----------------------------------------------------------------------------------------------------


def declared(name: str, call: ScheduledCall = CALL, **timing: Any) -> Schedule:
    return Schedule(name=name, timing=Timing(**timing), call=call)


HOURLY = declared("hourly", every_ms=HOUR_MS)


def test_a_deploy_adds_changes_and_removes(harness: StoreHarness, caplog: pytest.LogCaptureFixture) -> None:
    async def case(rig: Rig) -> None:
        store = rig.store
        await actions.declare(store, [HOURLY, declared("old", every_ms=5_000)], SOURCE)
        await rig.put("by-hand", every="1m")
        first = await actions.one(store, "hourly")
        assert (first.source, first.next_at_ms) == (SOURCE, rig.clock.now_ms() + HOUR_MS)
        faster = declared("hourly", every_ms=HOUR_MS // 2)
        await actions.declare(store, [faster, declared("new", cron="@daily")], SOURCE)
        changed = await actions.one(store, "hourly")
        assert changed.timing == faster.timing
        assert changed.next_at_ms == rig.clock.now_ms() + HOUR_MS // 2
        assert {each.name for each in await actions.listed(store)} == {"hourly", "new", "by-hand"}

    with caplog.at_level(logging.INFO):
        on_store(harness, case)
    lines = [record.getMessage() for record in caplog.records if record.name == actions.log.name]
    assert lines == [
        "schedule hourly is new: next occurrence 2027-01-15T09:00:00Z",
        "schedule old is new: next occurrence 2027-01-15T08:00:05Z",
        "schedule hourly is changed: next occurrence 2027-01-15T08:30:00Z",
        "schedule new is new: next occurrence 2027-01-16T00:00:00Z",
        "schedule old is removed: shop:app no longer declares it",
    ]


def test_what_the_code_says_as_before_is_left_alone(harness: StoreHarness) -> None:
    async def case(rig: Rig) -> None:
        store = rig.store
        await actions.declare(store, [HOURLY], SOURCE)
        await actions.edit(store, "hourly", lambda each: (each.timing, ScheduledCall(type="report", queue="slow")))
        edited = await actions.one(store, "hourly")
        rig.clock.advance(HOUR_MS // 2)
        await actions.declare(store, [HOURLY], SOURCE)
        assert await actions.one(store, "hourly") == edited
        await actions.declare(store, [declared("hourly", ScheduledCall(type="other"), every_ms=HOUR_MS)], SOURCE)
        after = await actions.one(store, "hourly")
        assert (after.call, after.next_at_ms) == (ScheduledCall(type="other"), edited.next_at_ms)

    on_store(harness, case)


def test_a_pause_outlives_deploys(harness: StoreHarness) -> None:
    async def case(rig: Rig) -> None:
        store = rig.store
        await actions.declare(store, [HOURLY], SOURCE)
        await actions.pause(store, "hourly")
        await actions.declare(store, [HOURLY], SOURCE)
        await actions.declare(store, [declared("hourly", every_ms=2 * HOUR_MS)], SOURCE)
        after = await actions.one(store, "hourly")
        assert (after.paused, after.next_at_ms, after.timing.every_ms) == (True, None, 2 * HOUR_MS)

    on_store(harness, case)


def test_schedules_of_others_are_never_touched(caplog: pytest.LogCaptureFixture) -> None:
    async def case(rig: Rig) -> None:
        store = rig.store
        await rig.put("hourly", every="1m")
        await actions.declare(store, [declared("daily", cron="@daily")], "other:app")
        before = await actions.listed(store)
        await actions.declare(store, [HOURLY, declared("daily", every_ms=5_000)], SOURCE)
        await actions.declare(store, [], SOURCE)
        assert await actions.listed(store) == before

    on_store(SqliteMemoryHarness(), case)
    assert [record.getMessage() for record in caplog.records] == [
        "schedule hourly of shop:app is left out: one of that name is made at run time",
        "schedule daily of shop:app is left out: one of that name is declared in other:app",
    ]


def test_workers_that_start_together_declare_the_same_once(harness: StoreHarness) -> None:
    async def case(rig: Rig) -> None:
        many = [declared(f"s{n}", every_ms=HOUR_MS + n * 1_000) for n in range(5)]
        twins = [await harness.open() for _ in range(3)]
        await asyncio.gather(*(actions.declare(twin, many, SOURCE) for twin in twins))
        assert [each.version for each in await actions.listed(rig.store)] == [1] * 5
        await asyncio.gather(*(actions.declare(twin, many[:2], SOURCE) for twin in twins))
        assert {each.name for each in await actions.listed(rig.store)} == {"s0", "s1"}
        for twin in twins:
            await twin.close()

    on_store(harness, case)


def test_a_store_without_room_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "_PAUSE_AFTER_ERROR_SECONDS", 0.001)

    class Full(PassingStore):
        full = 3

        async def put(self, write: DocumentWrite) -> DocumentResult:
            self.full -= 1
            if self.full >= 0:
                raise StoreFull("no room")
            return await self.inner.put(write)

    async def case(rig: Rig) -> None:
        await actions.keep_declared(Full(rig.store), [HOURLY], SOURCE)
        assert [each.name for each in await actions.listed(rig.store)] == ["hourly"]

    on_store(SqliteMemoryHarness(), case)
