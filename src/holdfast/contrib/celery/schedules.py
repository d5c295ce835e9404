"""`crontab` and `schedule`, and the timing that Holdfast makes of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from holdfast.contrib.celery.refusals import missing
from holdfast.core.schedule.decide import changed_timing
from holdfast.core.schedule.record import Timing
from holdfast.errors import BadSchedule

_WORD: Final = re.compile(r"[A-Za-z]+")


class crontab:  # noqa: N801  (Celery's name)
    """Times by minute, hour and day, as in a crontab; `nowfun` and `app` have no effect."""

    def __init__(
        self,
        minute: Any = "*",
        hour: Any = "*",
        day_of_week: Any = "*",
        day_of_month: Any = "*",
        month_of_year: Any = "*",
        *,
        timezone: Any = None,
        **_: Any,
    ) -> None:
        self.fields = tuple(map(_field, (minute, hour, day_of_month, month_of_year, day_of_week)))
        self.timezone = timezone

    def timing(self, zone: str) -> Timing:
        """The same for a schedule of Holdfast's; `BadSchedule` if that would have other times."""
        _, _, day_of_month, _, day_of_week = self.fields
        if day_of_month != "*" and day_of_week != "*":
            raise BadSchedule(
                f"crontab {' '.join(self.fields)}: Celery needs day_of_month and day_of_week to match, cron one of "
                "them: leave one out and look at the day in the task"
            )
        return changed_timing(Timing(), cron=" ".join(self.fields), timezone=str(self.timezone or zone))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, crontab) and (self.fields, self.timezone) == (other.fields, other.timezone)

    def __hash__(self) -> int:
        return hash(self.fields)

    def __repr__(self) -> str:
        return f"<crontab: {' '.join(self.fields)} (m/h/dM/MY/d)>"


class schedule:  # noqa: N801  (Celery's name)
    """Times at an interval."""

    def __init__(self, run_every: float | timedelta, relative: bool = False, **_: Any) -> None:
        self.run_every = run_every if isinstance(run_every, timedelta) else timedelta(seconds=run_every)
        self.relative = relative

    def timing(self, zone: str) -> Timing:  # noqa: ARG002  (as of a crontab)
        """The same for a schedule of Holdfast's, whose intervals are counted from 1970."""
        return changed_timing(Timing(), every=self.run_every)

    def __repr__(self) -> str:
        return f"<freq: {self.run_every}>"


def timing_of(when: Any, zone: str) -> Timing:
    """The timing of what an entry of beat_schedule has: a crontab, an interval, or one of Celery's own objects."""
    if isinstance(when, (int, float, timedelta)) and not isinstance(when, bool):
        return schedule(when).timing(zone)
    if isinstance(when, (crontab, schedule)):
        return when.timing(zone)
    parts = [getattr(when, f"_orig_{name}", None) for name in ("minute", "hour", "day_of_week", "day_of_month")]
    if None not in parts:  # a crontab of Celery's own, from a module that still imports it
        minute, hour, day_of_week, day_of_month = parts
        months = when._orig_month_of_year  # noqa: SLF001
        return crontab(minute, hour, day_of_week, day_of_month, months).timing(zone)
    if isinstance(getattr(when, "run_every", None), timedelta):
        return schedule(when.run_every).timing(zone)
    raise BadSchedule(f"{when!r} is neither a crontab nor an interval")


def _field(value: Any) -> str:
    if isinstance(value, str):
        return _WORD.sub(lambda found: found[0][:3].lower(), value.replace(" ", ""))
    if isinstance(value, Iterable):
        return ",".join(str(each) for each in sorted(value))
    return str(value)


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
