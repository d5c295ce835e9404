"""Makes schedules of Celery's beat: of `beat_schedule`, `add_periodic_task` and django-celery-beat's tables."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from holdfast.admin import schedules as actions
from holdfast.contrib.celery.app import Celery
from holdfast.contrib.celery.messages import unmarked
from holdfast.contrib.celery.schedules import crontab, timing_of
from holdfast.core.schedule.decide import digest
from holdfast.core.schedule.record import Schedule
from holdfast.errors import HoldfastError, UsageError
from holdfast.producer.schedules import call_of, protected_call
from holdfast.stores.contract import Store

#: The characters of a schedule's name; a longer one is cut.
MAX_NAME_CHARS: Final = 100
#: Celery's own entry for the results that Holdfast prunes by itself.
_NOT_NEEDED: Final = "celery.backend_cleanup"
_BLANKS: Final = re.compile(r"[^A-Za-z0-9_.:-]+")


class Refused(Exception):
    """Why an entry cannot become a schedule."""


@dataclass(frozen=True)
class Entry:
    """One entry of beat, wherever it comes from."""

    name: str
    task: str
    schedule: Any
    args: Any = ()
    kwargs: Any = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    enabled: bool = True


@dataclass(frozen=True)
class Step:
    """What becomes of one entry or schedule: create, change, keep, remove, disabled or refused."""

    verb: str
    name: str
    text: str


@dataclass
class Plan:
    """The schedules to declare, and what that changes in the store."""

    schedules: list[Schedule] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def refused(self) -> bool:
        """Whether an entry cannot become a schedule."""
        return any(step.verb == "refused" for step in self.steps)


def source_of(reference: str) -> str:
    """Where the schedules of this project come from, as the store keeps it: those of other sources are not touched."""
    return f"celery beat {reference}"


async def convert(app: Celery, entries: Sequence[Entry], store: Store, reference: str, *, dry_run: bool) -> Plan:
    """Brings the schedules of this project in line with its beat; the same again changes nothing."""
    plan = _planned(app, entries, await actions.listed(store), source_of(reference))
    if not dry_run:
        await actions.declare(store, plan.schedules, source_of(reference))
    return plan


def _planned(app: Celery, entries: Sequence[Entry], known: Sequence[Schedule], source: str) -> Plan:
    plan = Plan()
    before = {schedule.name: schedule for schedule in known}
    for entry in entries:
        if not entry.enabled:
            plan.steps.append(Step("disabled", slug(entry.name), f"{entry.task}: no schedule while it is disabled"))
            continue
        try:
            made = _schedule(app, entry)
            plan.steps.append(Step(_verb(made, before.get(made.name), source), made.name, _shown(made)))
            plan.schedules.append(made)
        except (Refused, HoldfastError, TypeError, ValueError) as error:
            plan.steps.append(Step("refused", entry.name, str(error)))
    wanted = {schedule.name for schedule in plan.schedules}
    for schedule in known:
        if schedule.source == source and schedule.name not in wanted:
            plan.steps.append(Step("remove", schedule.name, _shown(schedule)))
    return plan


def _verb(made: Schedule, before: Schedule | None, source: str) -> str:
    if before is None:
        return "create"
    if before.source != source:
        raise Refused(f"a schedule of that name exists ({before.source or 'made at run time'}); remove it first")
    return "keep" if before.declared == digest(made.timing, made.call) else "change"


def _schedule(app: Celery, entry: Entry) -> Schedule:
    if isinstance(entry.schedule, Refused):
        raise entry.schedule
    if entry.task not in app.tasks:
        raise Refused(f"the app has no task {entry.task}")
    name, timing = slug(entry.name), timing_of(entry.schedule, app.conf.zone)
    args, kwargs = tuple(entry.args or ()), dict(entry.kwargs or {})
    prepared = app.prepare(entry.task, args, kwargs, None, entry.options, app.tasks[entry.task])
    return Schedule(
        name=name, timing=timing, call=protected_call(call_of(prepared), prepared.options.crypto, name, timing)
    )


def _shown(schedule: Schedule) -> str:
    from holdfast.cli.schedules import when

    return f"{when(schedule.timing)}: {schedule.call.type} in {schedule.call.queue}"


def slug(name: str) -> str:
    """A name for a schedule: that of the entry if it can be one, else what is left of it and a short hash."""
    short = _BLANKS.sub("-", name).strip("-.:")[:MAX_NAME_CHARS]
    return name if short == name else f"{short or 'entry'}-{sha256(name.encode()).hexdigest()[:6]}"


# -- where entries come from ---------------------------------------------------------------------------------


def entries_of(app: Celery) -> list[Entry]:
    """All entries of an app; one in the database outweighs one of the same name in the settings."""
    declared = {**app.conf.beat_schedule, **app.beat_entries}
    found = {name: _declared(name, entry) for name, entry in declared.items()}
    if os.environ.get("DJANGO_SETTINGS_MODULE"):
        found.update((entry.name, entry) for entry in _in_database())
    return [found[name] for name in sorted(found)]


def _declared(name: str, entry: dict[str, Any]) -> Entry:
    if "task" not in entry or "schedule" not in entry:
        return Entry(name, "", Refused("the entry has no task or no schedule"))
    options = dict(entry.get("options") or {})
    return Entry(name, entry["task"], entry["schedule"], entry.get("args"), entry.get("kwargs"), options)


def _in_database() -> Iterator[Entry]:
    from django.apps import apps

    if not apps.is_installed("django_celery_beat"):
        return
    rows = apps.get_model("django_celery_beat", "PeriodicTask").objects
    for row in rows.select_related("interval", "crontab", "solar", "clocked").order_by("name"):
        if row.task != _NOT_NEEDED:
            yield _of_row(row)


def _of_row(row: Any) -> Entry:
    options = {"queue": row.queue, "priority": row.priority, "expires": row.expire_seconds}
    try:
        args, kwargs, headers = (unmarked(json.loads(text)) for text in (row.args, row.kwargs, row.headers or "{}"))
        options["headers"] = headers
        when = _timing_of_row(row)
    except (Refused, ValueError) as error:
        return Entry(row.name, row.task, Refused(str(error)), enabled=row.enabled)
    return Entry(row.name, row.task, when, args, kwargs, options, row.enabled)


def _timing_of_row(row: Any) -> Any:
    if row.one_off or row.clocked_id:
        raise Refused("it runs once: enqueue it with apply_async(eta=…)")
    if row.solar_id:
        raise Refused("there are no solar schedules")
    if row.expires is not None:
        raise Refused(f"it ends at {row.expires}: a schedule has no end; remove it then")
    if row.start_time is not None and row.start_time > datetime.now(UTC):
        raise Refused(f"it starts at {row.start_time}: convert it then")
    if row.exchange or row.routing_key:
        raise Refused("there are no exchanges; name a queue")
    if row.interval_id:
        return timedelta(**{row.interval.period: row.interval.every})
    if not row.crontab_id:
        raise Refused("it has no schedule")
    at = row.crontab
    return crontab(at.minute, at.hour, at.day_of_week, at.day_of_month, at.month_of_year, timezone=str(at.timezone))


def load(reference: str) -> Celery:
    """The app behind `module:app`, with all of its tasks."""
    from holdfast.worker.loading import load_object

    app = load_object(reference)
    if not isinstance(app, Celery):
        kind = f"{type(app).__module__}.{type(app).__name__}"
        raise UsageError(f"{reference} is a {kind}: change its imports to holdfast.contrib.celery first")
    _ = app.holdfast
    return app
