"""`holdfast celery beat` makes schedules of Celery's, and the same again changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.contrib.celery import crontab
from holdfast.contrib.celery.beat import slug
from holdfast.contrib.celery.schedules import schedule, timing_of
from holdfast.core.schedule.record import Schedule
from holdfast.errors import BadSchedule
from tests.contrib.test_celery_apps import SHOP, script, settings
from tests.support import run_holdfast

TASKS = "tests.contrib.celery_apps.shop.orders.tasks"
ROWS = f"""
from datetime import datetime, timedelta, timezone
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask
night, _ = CrontabSchedule.objects.get_or_create(minute="30", hour="2", day_of_week="mon-fri", timezone="Europe/Berlin")
both, _ = CrontabSchedule.objects.get_or_create(minute="0", hour="1", day_of_week="1", day_of_month="1")
often, _ = IntervalSchedule.objects.get_or_create(every=10, period="minutes")
once = ClockedSchedule.objects.create(clocked_time=datetime(2031, 1, 1, tzinfo=timezone.utc))
make = PeriodicTask.objects.create
make(name="Größen prüfen", task="{TASKS}.pay", crontab=night, args="[1]", queue="slow", expire_seconds=60)
make(name="mails", task="{TASKS}.send_mail", interval=often, kwargs='{{"order_id": 3}}')
make(name="off", task="{TASKS}.pay", interval=often, args="[1]", enabled=False)
make(name="both days", task="{TASKS}.pay", crontab=both, args="[1]")
make(name="clocked", task="{TASKS}.pay", clocked=once, one_off=True)
make(name="gone", task="shop.gone", interval=often)
make(name="celery.backend_cleanup", task="celery.backend_cleanup", crontab=night)
print("null")
"""


def schedules_of(store: str) -> dict[str, Schedule]:
    with Holdfast(store) as app:
        return {each.name: each for each in app.schedules.list()}


def beat(folder: Path, store: str, *more: str) -> dict[str, tuple[str, str]]:
    ended = run_holdfast("celery", "beat", SHOP, "--json", *more, env=settings(folder, store))
    assert ended.returncode == 1, ended.stderr  # some are refused
    return {step["name"]: (step["verb"], step["text"]) for step in json.loads(ended.stdout)}


def test_settings_and_tables_become_schedules_again_and_again(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    script(tmp_path, ROWS, store)
    sizes = slug("Größen prüfen")
    created = {sizes, "mails", slug("clean up")}

    assert {name for name, (verb, _) in beat(tmp_path, store, "--dry-run").items() if verb == "create"} == created
    assert schedules_of(store) == {}

    first = beat(tmp_path, store)
    assert {name for name, (verb, _) in first.items() if verb == "create"} == created
    assert first["off"][0] == "disabled"
    refused = {name: text for name, (verb, text) in first.items() if verb == "refused"}
    assert set(refused) == {"both days", "clocked", "gone"}
    assert "leave one out" in refused["both days"]
    assert refused["clocked"] == "it runs once: enqueue it with apply_async(eta=…)"
    assert refused["gone"] == "the app has no task shop.gone"

    made = schedules_of(store)
    assert (made[sizes].timing.cron, made[sizes].timing.timezone) == ("30 2 * * mon-fri", "Europe/Berlin")
    assert (made[sizes].call.queue, made[sizes].call.policy.expires_ms) == ("slow", 60_000)
    assert json.loads(made[sizes].call.payload) == {"args": [1], "kwargs": {}}
    assert (made["mails"].timing.every_ms, made["mails"].call.queue) == (600_000, "mail")
    assert json.loads(made[slug("clean up")].call.payload) == {"args": [], "kwargs": {"days": 30}}

    again = beat(tmp_path, store)
    assert {name for name, (verb, _) in again.items() if verb == "keep"} == created
    assert schedules_of(store) == made

    change = (
        "PeriodicTask.objects.filter(name='mails').delete(); IntervalSchedule.objects.update(every=5)\nprint('null')"
    )
    script(tmp_path, "from django_celery_beat.models import IntervalSchedule, PeriodicTask\n" + change, store)
    assert beat(tmp_path, store)["mails"][0] == "remove"
    assert set(schedules_of(store)) == created - {"mails"}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (crontab(), "* * * * *"),
        (crontab(minute=0, hour="*/3"), "0 */3 * * *"),
        (crontab(minute=[30, 0], hour=7, day_of_week="Monday"), "0,30 7 * * mon"),
        (crontab("0", "8-17/2", "mon-fri"), "0 8-17/2 * * mon-fri"),
        (crontab(0, 0, day_of_month="1", month_of_year="1,7"), "0 0 1 1,7 *"),
    ],
)
def test_a_crontab_is_a_cron_line(given: Any, line: str) -> None:
    assert timing_of(given, "Europe/Berlin").cron == line
    assert timing_of(given, "Europe/Berlin").timezone == "Europe/Berlin"


def test_intervals_are_intervals_and_celerys_own_objects_are_understood() -> None:
    from celery import schedules as celerys

    assert timing_of(30.0, "UTC").every_ms == 30_000
    assert timing_of(schedule(90), "UTC").every_ms == 90_000
    assert timing_of(celerys.schedule(90), "UTC").every_ms == 90_000
    assert timing_of(celerys.crontab(minute=5, day_of_week="sun"), "UTC").cron == "5 * * * sun"
    with pytest.raises(BadSchedule, match="neither a crontab nor an interval"):
        timing_of("often", "UTC")
    with pytest.raises(BadSchedule, match="leave one out"):
        timing_of(crontab(day_of_month=1, day_of_week=1), "UTC")
