"""Schedules in Django's admin: list, add, change, pause, resume, run now and delete, with Django's permissions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.admin.utils import quote, unquote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from holdfast.app import Holdfast
from holdfast.contrib.django.backend import HoldfastBackend
from holdfast.contrib.django.compat import task_backends
from holdfast.contrib.django.models import TaskSchedule
from holdfast.contrib.django.results import moment
from holdfast.contrib.django.schedule_form import ScheduleForm, interval
from holdfast.core.schedule.record import Schedule
from holdfast.errors import HoldfastError, UnknownSchedule

_TEMPLATES: Final = "holdfast/admin"
#: Schedules on a page.
_PAGE: Final = 100


class _Row(NamedTuple):
    """What the list shows of a schedule."""

    name: str
    quoted: str
    task: str
    timing: str
    next_at: Any
    last_at: Any
    status: str
    paused: bool


@admin.register(TaskSchedule)
class TaskScheduleAdmin(admin.ModelAdmin):  # type: ignore[misc]  # Django has no types
    """Its views ask the store of a backend; `?backend=` chooses one where settings.TASKS has several stores."""

    def get_urls(self) -> list[Any]:
        """The names that the admin knows for every model, and those of the actions."""
        views: tuple[tuple[str, str, Callable[..., Any]], ...] = (
            ("", "changelist", self.changelist_view),
            ("add/", "add", self.add_view),
            ("<str:object_id>/change/", "change", self.change_view),
            ("<str:object_id>/delete/", "delete", self.delete_view),
            ("<str:object_id>/pause/", "pause", self._action("pause", "Schedule {name} is paused.")),
            ("<str:object_id>/resume/", "resume", self._action("resume", "Schedule {name} is enabled.")),
            ("<str:object_id>/run/", "run", self._action("run_now", "Task {task_id} of {name} is enqueued.")),
        )
        wrap = self.admin_site.admin_view
        return [path(route, wrap(view), name=_url_name(name)) for route, name, view in views]

    # -- views --------------------------------------------------------------------------------------------------

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """All schedules, by their next occurrence."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        backend, wanted = _backend(request), request.GET.get("q", "").strip()
        found: list[Schedule] = []
        try:
            if backend is not None:
                found = [each for each in _app(backend).schedules.list() if wanted.lower() in each.name.lower()]
        except HoldfastError as error:
            self.message_user(request, str(error), messages.ERROR)
        page = Paginator(found, _PAGE).get_page(request.GET.get("p"))
        context = self._context(request, "Schedules", extra_context, backend=backend, page=page, wanted=wanted)
        context |= {"rows": [_row(each) for each in page], "backends": list(_backends())}
        return self._shown(request, "schedules.html", context)

    def add_view(self, request: Any, form_url: str = "", extra_context: Any = None) -> Any:
        """A form for a new schedule."""
        del form_url
        if not self.has_add_permission(request):
            raise PermissionDenied
        return self._form(request, _backend(request), None, extra_context, can_change=True)

    def change_view(self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """The form of a schedule, which cannot be changed with the permission to view only."""
        del form_url
        can_change = self.has_change_permission(request)
        if not (can_change if request.method == "POST" else self.has_view_permission(request)):
            raise PermissionDenied
        backend = _backend(request)
        try:
            return self._form(request, backend, _one(backend, object_id), extra_context, can_change=can_change)
        except HoldfastError as error:
            return self._back(request, error)

    def delete_view(self, request: Any, object_id: str, extra_context: Any = None) -> Any:
        """Asks, then deletes a schedule; its tasks stay."""
        if not self.has_delete_permission(request):
            raise PermissionDenied
        backend = _backend(request)
        try:
            schedule = _one(backend, object_id)
            if request.method == "POST" and backend is not None:
                _app(backend).schedules.remove(schedule.name)
                self._log(request, schedule.name, DELETION, "")
                self.message_user(request, f"Schedule {schedule.name} is deleted.", messages.SUCCESS)
                return self._back(request)
        except HoldfastError as error:
            return self._back(request, error)
        context = self._context(request, "Delete schedule", extra_context, schedule=schedule, backend=backend)
        return self._shown(request, "delete_schedule.html", context)

    def _action(self, method: str, told: str) -> Callable[..., Any]:
        """A view that does one thing to a schedule, for the buttons."""

        def view(request: Any, object_id: str) -> Any:
            if request.method != "POST":
                return HttpResponseNotAllowed(["POST"])
            if not self.has_change_permission(request):
                raise PermissionDenied
            backend, name = _backend(request), unquote(object_id)
            try:
                done = getattr(_app(backend).schedules, method)(name)
            except HoldfastError as error:
                return self._back(request, error)
            message = told.format(name=name, task_id=getattr(done, "task_id", ""))
            self._log(request, name, CHANGE, message)
            self.message_user(request, message, messages.SUCCESS)
            return self._back(request)

        return view

    def _form(
        self,
        request: Any,
        backend: HoldfastBackend | None,
        schedule: Schedule | None,
        extra_context: Any,
        *,
        can_change: bool,
    ) -> Any:
        app = _app(backend)
        if backend is not None:
            backend.known.discover()
        form = ScheduleForm(app, schedule, request.POST if request.method == "POST" else None, can_change=can_change)
        try:
            if form.is_valid():
                return self._saved(request, form, is_new=schedule is None)
        except HoldfastError as error:
            form.add_error(None, str(error))
        title = "Add schedule" if schedule is None else "Change schedule" if can_change else "View schedule"
        context = self._context(request, title, extra_context, form=form, schedule=schedule, backend=backend)
        context |= {"row": None if schedule is None else _row(schedule), "can_change": can_change}
        return self._shown(request, "schedule.html", context)

    def _saved(self, request: Any, form: ScheduleForm, *, is_new: bool) -> Any:
        schedule = form.save()
        changed = f"Changed {', '.join(form.changed_data)}." if form.changed_data else ""
        self._log(request, schedule.name, ADDITION if is_new else CHANGE, "" if is_new else changed)
        self.message_user(request, f"Schedule {schedule.name} is {'added' if is_new else 'changed'}.", messages.SUCCESS)
        return self._back(request)

    # -- what they share ----------------------------------------------------------------------------------------

    def _context(self, request: Any, title: str, more: Any, **own: Any) -> dict[str, Any]:
        return {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.model._meta,  # noqa: SLF001  (documented, for all its name)
            "has_add_permission": self.has_add_permission(request),
            "has_change_permission": self.has_change_permission(request),
            "has_delete_permission": self.has_delete_permission(request),
            "query": _query(request),
            **own,
            **(more or {}),
        }

    def _shown(self, request: Any, template: str, context: dict[str, Any]) -> Any:
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"{_TEMPLATES}/{template}", context)

    def _back(self, request: Any, error: HoldfastError | None = None) -> Any:
        """To the list, where messages are shown."""
        if error is not None:
            self.message_user(request, str(error), messages.ERROR)
        url = reverse(f"admin:{_url_name('changelist')}", current_app=self.admin_site.name)
        return HttpResponseRedirect(url + _query(request))

    def _log(self, request: Any, name: str, flag: int, message: str) -> None:
        LogEntry.objects.create(
            user_id=request.user.pk,
            content_type=ContentType.objects.get_for_model(self.model),
            object_id=name,
            object_repr=name,
            action_flag=flag,
            change_message=message,
        )


# -- stores ------------------------------------------------------------------------------------------------------


def _backends() -> dict[str, HoldfastBackend]:
    """The backends of Holdfast, one for each store; the default one first."""
    found: dict[str, HoldfastBackend] = {}
    for alias in sorted(task_backends.settings, key=lambda each: each != "default"):
        backend = task_backends[alias]
        if isinstance(backend, HoldfastBackend) and _app(backend).url not in {_app(e).url for e in found.values()}:
            found[alias] = backend
    return found


def _backend(request: Any) -> HoldfastBackend | None:
    """The chosen one; None if settings.TASKS has none of Holdfast's."""
    backends = _backends()
    alias = request.GET.get("backend")
    if alias is not None and alias not in backends:
        raise Http404(f"TASKS has no {alias!r} that is a HoldfastBackend with a store of its own")
    return backends[alias] if alias is not None else next(iter(backends.values()), None)


def _app(backend: HoldfastBackend | None) -> Holdfast:
    if backend is None:
        raise Http404("TASKS has no HoldfastBackend")
    return backend.known.app


def _one(backend: HoldfastBackend | None, object_id: str) -> Schedule:
    name = unquote(object_id)
    try:
        return _app(backend).schedules.get(name)
    except UnknownSchedule as error:
        raise Http404(str(error)) from None


def _query(request: Any) -> str:
    alias = request.GET.get("backend")
    return "" if alias is None else f"?{urlencode({'backend': alias})}"


def _url_name(view: str) -> str:
    return f"holdfast_taskschedule_{view}"


def _row(schedule: Schedule) -> _Row:
    timing = schedule.timing
    return _Row(
        name=schedule.name,
        quoted=quote(schedule.name),
        task=schedule.call.type,
        timing=f"{timing.cron} {timing.timezone}" if timing.every_ms is None else f"every {interval(timing.every_ms)}",
        next_at=None if schedule.next_at_ms is None else moment(schedule.next_at_ms),
        last_at=None if schedule.last_at_ms is None else moment(schedule.last_at_ms),
        status="paused" if schedule.paused else "waits for its last task" if schedule.waiting else "enabled",
        paused=schedule.paused,
    )
