"""The form of a schedule in Django's admin: what is wrong is an error of its field, in Holdfast's own words."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings

from holdfast.admin.inspect import json_value
from holdfast.app import Holdfast
from holdfast.core.durations import duration_ms, format_ms
from holdfast.core.names import check_schedule
from holdfast.core.schedule.decide import changed_timing
from holdfast.core.schedule.record import Schedule, Timing, is_bound
from holdfast.errors import BadArguments, BadSchedule, UnknownSchedule, UsageError
from holdfast.producer.enqueue import Prepared

_NAMES = 'write the arguments by name, as {"number": 1}'


class ScheduleForm(forms.Form):  # type: ignore[misc]  # Django has no types
    """Adds a schedule, or changes the one that it is given."""

    name = forms.CharField(max_length=128)
    task = forms.ChoiceField()
    cron = forms.CharField(
        required=False,
        label="Cron expression",
        help_text="Five fields, six with seconds first, or a name such as @daily: 0 3 * * *",
    )
    timezone = forms.CharField(required=False, label="Time zone", help_text="Of the cron expression: Europe/Berlin")
    every = forms.CharField(
        required=False, label="Interval", help_text="Instead of a cron expression: 30s, 10m, 1h or 1d"
    )
    arguments = forms.JSONField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 4, "cols": 80}),
        help_text='By name, as JSON: {"number": 1}',
    )
    enabled = forms.BooleanField(required=False, initial=True)

    def __init__(self, app: Holdfast, schedule: Schedule | None, data: Any = None, *, can_change: bool = True) -> None:
        self._app = app
        self._schedule = schedule
        #: What each occurrence is to enqueue; None: as before.
        self.call: Prepared[Any] | None = None
        #: The parts of the timing that change.
        self.timing: dict[str, Any] = {}
        super().__init__(data, initial=_initial(app, schedule))
        names = sorted(app.task_types)
        if schedule is not None:
            self.fields["name"].disabled = self.fields["task"].disabled = True
            self.fields["arguments"].disabled = not _is_editable(app, schedule)
            names = sorted({*names, schedule.call.type})
        self.fields["task"].choices = [(name, name) for name in names]
        for field in self.fields.values():
            field.disabled = field.disabled or not can_change

    def clean_name(self) -> str:
        """Refuses names that no store takes, and names that are taken."""
        name = str(self.cleaned_data["name"])
        if self._schedule is not None:
            return name
        try:
            check_schedule(name)
            self._app.schedules.get(name)
        except UnknownSchedule:
            return name
        except UsageError as error:
            raise forms.ValidationError(str(error)) from None
        raise forms.ValidationError(f"there is a schedule {name} already: change that one, or choose another name")

    def clean_arguments(self) -> Any:
        """An object by name; nothing stands for no arguments."""
        given = self.cleaned_data["arguments"]
        if given is None:
            return {}
        if not isinstance(given, dict) and not self.fields["arguments"].disabled:
            raise forms.ValidationError(_NAMES)
        return given

    def clean(self) -> Any:
        """Checks timing and arguments as `app.schedules` does."""
        given = super().clean()
        if self._schedule is None or {"cron", "every", "timezone"}.intersection(self.changed_data):
            self._check_timing(given)
        # A JSON field that is disabled counts as changed if a request has another value for it.
        is_new = "arguments" in self.changed_data and not self.fields["arguments"].disabled
        if "task" in given and "arguments" in given and (self._schedule is None or is_new):
            self._check_call(given)
        return given

    def _check_timing(self, given: dict[str, Any]) -> None:
        cron, every, timezone = (str(given.get(name) or "").strip() for name in ("cron", "every", "timezone"))
        before = Timing() if self._schedule is None else self._schedule.timing
        if not cron and not every:
            self.add_error("cron", "give a cron expression or an interval")
            return
        timing = {"cron": cron or None, "every": every or None}
        try:
            changed_timing(before, **timing, timezone="UTC")
            if cron:
                timing["timezone"] = timezone or "UTC"
                changed_timing(before, **timing)
        except BadSchedule as error:
            self.add_error("timezone" if "timezone" in timing else "cron" if cron else "every", str(error))
        else:
            self.timing = timing

    def _check_call(self, given: dict[str, Any]) -> None:
        try:
            self.call = self._app.task_types[given["task"]].prepare(**given["arguments"])
        except (BadArguments, UsageError) as error:
            self.add_error("arguments", str(error))

    # -- saving -------------------------------------------------------------------------------------------------

    def save(self) -> Schedule:
        """Brings the schedule in the store in line with the form."""
        schedules, name = self._app.schedules, self.cleaned_data["name"]
        found = self._schedule
        if found is None:
            if self.call is None:
                raise BadArguments(_NAMES)  # not reached by a form that is valid
            found = schedules.put(name, self.call, **self.timing)
        elif self.call is not None or self.timing:
            kept: dict[str, Any] = {} if self.call is None else _kept(found)
            found = schedules.edit(name, self.call, **kept, **self.timing)
        enabled = self.cleaned_data["enabled"]
        if enabled == found.paused:
            found = schedules.resume(name) if enabled else schedules.pause(name)
        return found


def _initial(app: Holdfast, schedule: Schedule | None) -> dict[str, Any]:
    if schedule is None:
        return {"timezone": settings.TIME_ZONE, "arguments": {}}
    timing = schedule.timing
    return {
        "name": schedule.name,
        "task": schedule.call.type,
        "cron": timing.cron or "",
        "timezone": timing.timezone if timing.cron else "",
        "every": "" if timing.every_ms is None else interval(timing.every_ms),
        "arguments": json_value(_opened(app, schedule).payload),
        "enabled": not schedule.paused,
    }


def _kept(schedule: Schedule) -> dict[str, Any]:
    """What a new call would else take from its task type."""
    return {"queue": schedule.call.queue, "priority": schedule.call.priority}


def interval(every_ms: int) -> str:
    """The interval as text that can be read again."""
    text = format_ms(every_ms)
    try:
        return text if duration_ms(text, "every") == every_ms else f"{every_ms}ms"
    except UsageError:
        return f"{every_ms}ms"


def _is_editable(app: Holdfast, schedule: Schedule) -> bool:
    """Whether its arguments can be checked and written: the task is one of this project, and the keys are at hand."""
    return schedule.call.type in app.task_types and not is_bound(_opened(app, schedule))


def _opened(app: Holdfast, schedule: Schedule) -> Any:
    return schedule.call if app.crypto is None else app.crypto.opened_call(schedule)
