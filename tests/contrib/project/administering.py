"""Schedules in Django's admin, as a superuser and as a user with the permission to view only sees them."""

from __future__ import annotations

from io import StringIO
from typing import Any
from unittest.mock import patch

from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import TestCase

from holdfast import Holdfast
from holdfast.contrib.django.compat import task_backends
from holdfast.errors import StoreUnavailable
from tests.contrib.project.case import Case
from tests.contrib.project.jobs import tasks

ADD = f"{tasks.__name__}.add"
LIST = "/admin/holdfast/taskschedule/"


class Administering(TestCase):  # type: ignore[misc]
    def setUp(self) -> None:
        self.app = task_backends["default"].known.app
        task_backends["default"].known.discover()
        for each in self.app.schedules.list():
            self.app.schedules.remove(each.name)
        self.client.force_login(User.objects.create_superuser("root"))

    def put(self, name: str = "by-code", **timing: Any) -> None:
        self.app.schedules.put(name, self.app.task_types[ADD].prepare(1), **(timing or {"every": "10m"}))

    def sign_in(self, *permissions: str) -> None:
        user = User.objects.create_user("viewer", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        self.client.force_login(user)

    def post(self, path: str, **fields: str) -> Any:
        return self.client.post(LIST + path, fields, follow=True)

    def form(self, **changes: str) -> dict[str, str]:
        given = {"name": "nightly", "task": ADD, "cron": "0 3 * * *", "timezone": "Europe/Berlin", "every": ""}
        return {**given, "arguments": '{"left": 2}', "enabled": "on", **changes}

    def test_the_list_shows_all_schedules(self) -> None:
        self.put()
        self.put("paused one".replace(" ", "_"), cron="0 3 * * *", timezone="Europe/Berlin")
        self.app.schedules.pause("paused_one")
        page = self.client.get(LIST)
        for text in ("by-code", ADD, "every 10m", "0 3 * * * Europe/Berlin", "paused", "Run now", "Resume"):
            self.assertContains(page, text)
        self.assertNotContains(self.client.get(LIST, {"q": "code"}), "paused_one")
        self.assertContains(self.client.get("/admin/"), LIST)

    def test_a_schedule_is_added(self) -> None:
        self.assertContains(self.client.get(f"{LIST}add/"), ADD)
        page = self.post("add/", **self.form())
        self.assertContains(page, "nightly is added.")
        found = self.app.schedules.get("nightly")
        assert (found.timing.cron, found.timing.timezone, found.call.type) == ("0 3 * * *", "Europe/Berlin", ADD)
        assert self.app.schedules.run_now("nightly").status().args == {"left": 2}
        assert LogEntry.objects.get().object_id == "nightly"

    def test_one_is_added_paused(self) -> None:
        fields = self.form(cron="", every="1h")
        del fields["enabled"]
        self.post("add/", **fields)
        found = self.app.schedules.get("nightly")
        assert (found.timing.every_ms, found.paused, found.next_at_ms) == (3_600_000, True, None)

    def test_bad_input_is_an_error_of_the_form(self) -> None:
        self.put()
        for changes, text in (
            ({"name": "a b"}, "schedule name"),
            ({"name": "by-code"}, "there is a schedule by-code already"),
            ({"cron": "61 * * * *"}, "61"),
            ({"timezone": "Europe/Munic"}, "Europe/Munic"),
            ({"every": "1h"}, "exclude each other"),
            ({"cron": "", "every": "often"}, "often"),
            ({"cron": ""}, "give a cron expression or an interval"),
            ({"arguments": "{"}, "Enter a valid JSON"),
            ({"arguments": "[1]"}, "write the arguments by name"),
            ({"arguments": '{"lefd": 1}'}, "unknown argument"),
            ({"arguments": '{"left": "a"}'}, "Expected `int`, got `str`"),
            ({"task": "os.system"}, "Select a valid choice"),
        ):
            with self.subTest(changes):
                page = self.post("add/", **self.form(**changes))
                errors = page.context["form"].errors
                assert text in str(errors.as_text()), (changes, errors)
        assert [each.name for each in self.app.schedules.list()] == ["by-code"]

    def test_a_schedule_is_changed_and_keeps_what_is_not_in_the_form(self) -> None:
        self.put(every=90_061, jitter="5s", overlap="skip")
        self.app.schedules.edit("by-code", queue="mail", priority=7)
        self.assertContains(self.client.get(f"{LIST}by-code/change/"), "90061000ms")
        fields = self.form(name="other", cron="", timezone="", every="90061000ms", arguments='{"left": 5}')
        page = self.post("by-code/change/", **fields)
        self.assertContains(page, "by-code is changed.")
        found = self.app.schedules.get("by-code")
        assert (found.timing.every_ms, found.timing.jitter_ms, found.timing.overlap) == (90_061_000, 5_000, "skip")
        assert (found.call.queue, found.call.priority) == ("mail", 7)
        assert self.app.schedules.run_now("by-code").status().args == {"left": 5}
        self.post("by-code/change/", **self.form(arguments='{"left": 5}'))
        found = self.app.schedules.get("by-code")
        assert (found.timing.cron, found.timing.every_ms, found.timing.jitter_ms) == ("0 3 * * *", None, 5_000)

    def test_a_schedule_of_a_task_that_is_not_here_keeps_its_arguments(self) -> None:
        native = Holdfast(self.app.url)
        self.addCleanup(native.close)
        native.task(name="elsewhere.work")(lambda number: None)
        native.schedules.put("native", native.task_types["elsewhere.work"].prepare(1), every="1h")
        page = self.client.get(f"{LIST}native/change/")
        assert page.context["form"].fields["arguments"].disabled
        self.post("native/change/", **self.form(arguments='{"left": 9}'))
        found = native.schedules.get("native")
        assert (found.call.type, found.timing.cron) == ("elsewhere.work", "0 3 * * *")
        assert native.schedules.run_now("native").status().args == {"number": 1}

    def test_a_schedule_is_paused_resumed_and_run(self) -> None:
        self.put()
        self.assertContains(self.post("by-code/pause/"), "by-code is paused.")
        assert self.app.schedules.get("by-code").paused
        self.assertContains(self.post("by-code/resume/"), "by-code is enabled.")
        assert not self.app.schedules.get("by-code").paused
        page = self.post("by-code/run/")
        task_id = self.app.schedules.get("by-code").last_task_id
        self.assertContains(page, f"Task {task_id} of by-code is enqueued.")
        self.app.schedules.edit("by-code", overlap="skip")
        self.assertContains(self.post("by-code/run/"), "does not overlap")
        assert self.client.get(f"{LIST}by-code/run/").status_code == 405

    def test_a_schedule_is_deleted_after_a_question(self) -> None:
        self.put()
        self.assertContains(self.client.get(f"{LIST}by-code/delete/"), "Delete the schedule by-code?")
        self.assertContains(self.post("by-code/delete/"), "by-code is deleted.")
        assert not self.app.schedules.list()
        assert self.client.get(f"{LIST}by-code/change/").status_code == 404

    def test_a_user_who_may_only_view_changes_nothing(self) -> None:
        self.put()
        self.sign_in("view_taskschedule")
        page = self.client.get(LIST)
        self.assertContains(page, "by-code")
        for text in ("Run now", "Pause", "Add schedule"):
            self.assertNotContains(page, text)
        page = self.client.get(f"{LIST}by-code/change/")
        self.assertContains(page, "disabled")
        self.assertNotContains(page, "Save")
        for action in ("change", "delete", "pause", "resume", "run"):
            assert self.post(f"by-code/{action}/", **self.form()).status_code == 403, action
        assert self.post("add/", **self.form()).status_code == 403
        assert self.app.schedules.get("by-code").last_task_id is None

    def test_a_user_without_permission_sees_nothing(self) -> None:
        self.sign_in()
        assert self.client.get(LIST).status_code == 403
        self.client.logout()
        assert "/admin/login/" in self.client.get(LIST).url

    def test_another_store_is_chosen_by_its_backend(self) -> None:
        self.put()
        self.assertNotContains(self.client.get(LIST, {"backend": "other"}), "by-code")
        self.client.post(f"{LIST}add/?backend=other", self.form())
        assert [each.name for each in task_backends["other"].known.app.schedules.list()] == ["nightly"]
        assert [each.name for each in self.app.schedules.list()] == ["by-code"]
        assert self.client.get(LIST, {"backend": "nowhere"}).status_code == 404

    def test_a_store_that_does_not_answer_is_a_message(self) -> None:
        schedules = type(self.app.schedules)
        with patch.object(schedules, "list", side_effect=StoreUnavailable("connection refused")):
            self.assertContains(self.client.get(LIST), "onnection refused")

    def test_commands_that_ask_every_model_for_its_rows_have_no_table_to_miss(self) -> None:
        out = StringIO()
        call_command("dumpdata", "holdfast", stdout=out)
        assert out.getvalue().strip() == "[]"
        call_command("dumpdata", "holdfast", "--all", stdout=out)
        call_command("makemigrations", "--check", "--dry-run", stdout=StringIO())
        call_command("check", stdout=StringIO())


class Declaring(Case):
    def test_a_task_carries_its_schedules(self) -> None:
        task_backends["default"].known.discover()
        found = {each.name: each for each in task_backends["default"].known.app.declared_schedules}
        prune, monthly = found[f"{tasks.__name__}.prune"], found["monthly"]
        assert (prune.timing.every_ms, prune.call.queue, prune.call.priority) == (3_600_000, "mail", 3)
        assert (monthly.timing.cron, monthly.timing.timezone) == ("0 3 1 * *", "Europe/Berlin")
        assert not task_backends["at_once"].known.app.declared_schedules
