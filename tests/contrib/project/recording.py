"""What is recorded when, without a worker."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import override_settings
from django.utils import timezone
from django.utils.safestring import SafeString

from holdfast import Holdfast
from holdfast.contrib.django import HoldfastBackend, headers
from holdfast.contrib.django.compat import (
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
)
from holdfast.errors import BadArguments, BadOption
from tests.contrib.project.case import Case
from tests.contrib.project.jobs import tasks


class Recording(Case):
    def setUp(self) -> None:
        self.app = Holdfast(os.environ["CASE_STORE"])
        self.addCleanup(self.app.close)

    def exists(self, result: Any) -> bool:
        try:
            task_backends["default"].get_result(result.id)
        except TaskResultDoesNotExist:
            return False
        return True

    def test_the_options_of_a_call_reach_the_store_and_come_back(self) -> None:
        at = (datetime.now() if not settings.USE_TZ else timezone.now()) + timedelta(hours=2)  # noqa: DTZ005
        result = tasks.greet.using(priority=-3, run_after=at).enqueue("you")
        record = self.app.handle(result.id).status()
        assert (record.queue, record.priority, record.state) == ("mail", -3, "scheduled")
        assert abs(record.run_at.timestamp() - at.timestamp()) < 0.01
        found = tasks.greet.get_result(result.id)
        assert found.task == result.task
        assert (found.args, found.kwargs) == (["you"], {})
        plain = tasks.greet.enqueue("me")
        assert tasks.greet.get_result(plain.id).task == tasks.greet == plain.task
        assert (found.enqueued_at.tzinfo is not None) is settings.USE_TZ
        assert abs((found.enqueued_at - result.enqueued_at).total_seconds()) < 5 or not settings.USE_TZ

    def test_async_callers_record_and_look_too(self) -> None:
        async def main() -> Any:
            result = await tasks.add.aenqueue(1, right=2)
            await result.arefresh()
            return result

        result = asyncio.run(main())
        assert result.status == TaskResultStatus.READY
        assert (result.args, result.kwargs) == ([1], {"right": 2})
        assert self.exists(result)

    def test_a_call_that_no_worker_could_run_is_refused(self) -> None:
        with pytest.raises(InvalidTask):
            tasks.add.using(queue_name="unknown").enqueue(1)
        with pytest.raises(InvalidTask):
            tasks.add.using(priority=101)
        with pytest.raises(BadArguments, match="object"):
            tasks.add.enqueue(object())

    def test_a_task_has_the_policy_that_is_written_beside_it(self) -> None:
        of_task, of_backend = (
            self.app.handle(task.enqueue(1).id).status().record.policy for task in (tasks.charge, tasks.add)
        )
        assert (of_task.max_attempts, of_task.base_ms, of_task.timeout_ms) == (7, 3_000, 20_000)
        assert of_task.expires_ms == 3_600_000
        assert (of_backend.max_attempts, of_backend.base_ms, of_backend.timeout_ms) == (2, 10, None)
        assert task_backends["default"].known.type_of(tasks.render).policy.timeout_ms == 30_000

    def test_arguments_that_the_function_does_not_take_are_refused_where_it_is_enqueued(self) -> None:
        with pytest.raises(BadArguments, match=r"add\(\): missing argument 'left'; it takes left, right=1"):
            tasks.add.enqueue()
        with pytest.raises(BadArguments, match="unknown argument 'wrong'"):
            tasks.add.using(backend="after_commit").enqueue(1, wrong=2)
        with pytest.raises(BadArguments, match=r"it takes page, scale=1\.0"):
            asyncio.run(tasks.render.aenqueue(scale=2.0))
        assert self.exists(tasks.render.enqueue(1, scale=2.0))

    def test_arguments_that_do_not_fit_the_annotations_are_refused_where_they_are_enqueued(self) -> None:
        with pytest.raises(BadArguments, match=r"add\(\): left: Expected `int`, got `str`"):
            tasks.add.enqueue("a")
        for value in (b"x", ("a", "b")):
            with pytest.raises(BadArguments, match=r"value: (bytes|tuple) would arrive as (str|list)"):
                tasks.anything.enqueue(value)
        assert self.exists(tasks.anything.enqueue(SafeString("<b>")))

    def test_annotated_values_arrive_as_what_they_are(self) -> None:
        result = tasks.remind.enqueue(date(2030, 1, 31), ids={1}, request="any annotation")
        assert (result.args, result.kwargs) == (["2030-01-31"], {"ids": [1], "request": "any annotation"})
        result.refresh()
        assert (result.args, result.kwargs) == (["2030-01-31"], {"ids": [1], "request": "any annotation"})
        known = task_backends["default"].known.type_of(tasks.remind)
        payload = self.app.handle(result.id).status().record.payload
        if not os.environ.get("HOLDFAST_KEYS"):
            assert known.codec.decode(payload)[0][:2] == (date(2030, 1, 31), {1})

    def test_arguments_are_stored_by_the_names_of_the_function(self) -> None:
        result = tasks.add.enqueue(2, right=3)
        info = self.app.handle(result.id).status()
        assert (info.args, result.status) == ({"left": 2, "right": 3}, TaskResultStatus.READY)
        assert (result.args, result.kwargs) == ([2], {"right": 3})
        result.refresh()
        assert (result.args, result.kwargs) == ([2], {"right": 3})
        several = tasks.several.enqueue(1, 2, 3, key=4, more=5)
        several.refresh()
        assert (several.args, several.kwargs) == ([1, 2, 3], {"key": 4, "more": 5})

    def test_arguments_of_earlier_versions_are_read(self) -> None:
        earlier = self.app.task(name=f"{tasks.__name__}.add")(lambda args, kwargs: None).enqueue([2], {"right": 3})
        found = tasks.add.get_result(earlier.task_id)
        assert (found.args, found.kwargs) == ([2], {"right": 3})

    def test_limits_and_headers_are_those_of_the_options(self) -> None:
        record = self.app.handle(tasks.add.using(backend="limited").enqueue(1).id).status().record
        policy = record.policy
        assert (policy.timeout_ms, policy.hard_timeout_ms, policy.expires_ms) == (60_000, 120_000, 3_600_000)
        assert (record.headers["tenant"], record.headers["about"]) == ("acme", "add")
        known = task_backends["limited"].known
        assert known.type_of(tasks.add).alone
        assert known.type_of(tasks.charge).policy.timeout_ms == 20_000, "its own policy comes first"

    def test_headers_are_those_of_the_block(self) -> None:
        with headers({"tenant": "acme", "user": "1"}), headers({"user": "2"}):
            inside = tasks.add.enqueue(1)
            from_async = asyncio.run(tasks.add.aenqueue(1))
        after = tasks.add.enqueue(1)
        found = [self.app.handle(each.id).status().headers for each in (inside, from_async, after)]
        assert [(each.get("tenant"), each.get("user")) for each in found] == [("acme", "2")] * 2 + [(None, None)]
        with pytest.raises(BadOption, match="taken by Holdfast"), headers({"django-positional": "9"}):
            pass

    def test_every_priority_of_django_is_one_of_the_store(self) -> None:
        found = [
            self.app.handle(tasks.add.using(priority=priority).enqueue(1).id).status() for priority in (-100, 5.0, 100)
        ]
        assert [record.priority for record in found] == [-100, 5, 100]

    def test_a_function_whose_name_no_store_takes_is_refused_where_it_is_declared(self) -> None:
        with pytest.raises(InvalidTask, match="größe"):
            replace(tasks.add, func=tasks.größe)

    def test_what_is_no_task_here_has_no_result(self) -> None:
        other = self.app.task(name="os.system")(lambda command: None).enqueue("true")
        for task_id in (other.task_id, "0" * 32, "nonsense"):
            with pytest.raises(TaskResultDoesNotExist):
                task_backends["default"].get_result(task_id)

    def test_a_cancelled_task_has_failed(self) -> None:
        result = tasks.add.enqueue(1)
        self.app.handle(result.id).cancel()
        result.refresh()
        assert result.status == TaskResultStatus.FAILED

    def test_with_on_commit_a_task_is_recorded_after_the_commit(self) -> None:
        task = tasks.add.using(backend="after_commit")
        with transaction.atomic():
            result = task.enqueue(1)
            assert not self.exists(result)
        assert self.exists(result)
        assert result.enqueued_at is not None
        assert self.exists(task.enqueue(1)), "outside of a transaction it is recorded at once"

    def test_with_on_commit_a_task_of_a_transaction_that_fails_is_never_recorded(self) -> None:
        with transaction.atomic():
            result = tasks.add.using(backend="after_commit").enqueue(1)
            transaction.set_rollback(True)
        assert not self.exists(result)

    def test_with_on_commit_an_async_caller_is_in_the_same_transaction(self) -> None:
        async def main() -> Any:
            block = transaction.atomic()
            await sync_to_async(block.__enter__)()
            result = await tasks.add.using(backend="after_commit").aenqueue(1)
            before = await sync_to_async(self.exists)(result)
            await sync_to_async(block.__exit__)(None, None, None)
            return before, await sync_to_async(self.exists)(result)

        assert asyncio.run(main()) == (False, True)

    def test_a_task_in_a_transaction_waits_for_the_commit_unless_the_options_say_otherwise(self) -> None:
        with transaction.atomic():
            waiting = tasks.add.enqueue(1)
            assert not self.exists(waiting)
            assert self.exists(tasks.add.using(backend="at_once").enqueue(1))
        assert self.exists(waiting)


class Settings(Case):
    def refused(self, options: dict[str, Any]) -> str:
        with pytest.raises(InvalidTaskBackend) as refusal:
            HoldfastBackend("default", {"OPTIONS": options})
        return str(refusal.value)

    def test_wrong_options_are_refused_in_one_line(self) -> None:
        assert "TASKS['default']: " in self.refused({"uri": "sqlite:///x.db"})
        assert "uri" in self.refused({"uri": "sqlite:///x.db"})
        assert "max_attempt" in self.refused({"retry": {"max_attempt": 3}})
        assert "lease" in self.refused({"lease": "1ms"})
        assert "expires" in self.refused({"expires": "soon"})
        assert "hard_timeout" in self.refused({"hard_timeout": "soon"})
        assert "run" in self.refused({"run": "thread"})

    def test_tasks_are_kept_as_long_as_the_options_say(self) -> None:
        options = {"url": "sqlite:///kept.db", "result_ttl": "30d", "dead_letter_ttl": "365d"}
        policy = HoldfastBackend("default", {"OPTIONS": options}).known.type_of(tasks.add).policy
        assert (policy.result_ttl_ms, policy.dead_letter_ttl_ms) == (30 * 86_400_000, 365 * 86_400_000)

    def test_the_checks_of_django_name_what_is_wrong(self) -> None:
        backend = HoldfastBackend("other", {"QUEUES": ["a b"], "OPTIONS": {"database": "nowhere"}})
        assert [message.id for message in backend.check()] == ["holdfast.E001", "holdfast.E002"]
        assert list(task_backends["default"].check()) == []

    def test_a_relative_file_is_in_the_folder_of_the_project(self) -> None:
        def url(options: dict[str, Any]) -> str:
            return str(HoldfastBackend("default", {"OPTIONS": options}).known.app.url)

        with override_settings(BASE_DIR=Path("/srv/a shop")), patch.dict(os.environ):
            os.environ.pop("HOLDFAST_URL", None)
            assert url({"url": "sqlite:///in_project.db"}) == "sqlite:////srv/a%20shop/in_project.db"
            assert url({"url": "sqlite:////var/tasks.db"}) == "sqlite:////var/tasks.db"
            assert url({"url": "sqlite://"}) == "sqlite://"
            assert url({}) == "sqlite:////srv/a%20shop/holdfast.db"
            os.environ["HOLDFAST_URL"] = "sqlite:///by_environment.db"
            assert url({"lease": "31s"}) == f"sqlite:///{Path.cwd()}/by_environment.db"
        assert url({"url": "sqlite:///nowhere.db"}) == f"sqlite:///{Path.cwd()}/nowhere.db"

    def test_the_hook_is_checked(self) -> None:
        for path, text in (("nowhere.hook", "nowhere"), ("tests.contrib.project.jobs.tenants.not_a_hook", "def ")):
            backend = HoldfastBackend("default", {"OPTIONS": {"url": "sqlite://", "outgoing": path}})
            (message,) = backend.check()
            assert (message.id, text in message.msg) == ("holdfast.E004", True)

    def test_the_worker_says_which_backends_there_are(self) -> None:
        with pytest.raises(CommandError, match="it has default, after_commit"):
            call_command("holdfast_worker", backend="nowhere")

    def test_all_threads_share_one_app_and_new_settings_make_another(self) -> None:
        first = HoldfastBackend("default", {"OPTIONS": {"url": "sqlite:///one.db"}})
        assert HoldfastBackend("default", {"OPTIONS": {"url": "sqlite:///one.db"}}).known is first.known
        with override_settings(TASKS={}):
            assert HoldfastBackend("default", {"OPTIONS": {"url": "sqlite:///two.db"}}).known is not first.known
