"""Tasks that a worker runs, looked at from here."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from typing import Any

from django.utils import timezone

from holdfast import Holdfast
from holdfast.contrib.django.compat import TaskResultStatus
from tests.contrib.project.case import Case
from tests.contrib.project.jobs import tasks
from tests.support import eventually


class Running(Case):
    def test_all_kinds_of_tasks_end_as_django_says(self) -> None:
        app = Holdfast(os.environ["CASE_STORE"])
        strange = app.task(name=f"{tasks.__name__}.plain_function")(lambda args, kwargs: None).enqueue([], {})
        missing = app.task(name="os.system")(lambda args, kwargs: None).enqueue(["true"], {})
        misfit = app.task(name=f"{tasks.__name__}.add")(lambda args, kwargs: None).enqueue([1, 2, 3], {})
        results: dict[str, Any] = {
            "added": tasks.add.enqueue(2, right=40),
            "greeted": tasks.greet.enqueue("you"),
            "again": tasks.fail_once.enqueue("not yet"),
            "failed": tasks.fail_always.enqueue(),
            "given up": tasks.give_up.enqueue(),
            "unfit": tasks.unfit.enqueue(),
            "slept": tasks.sleepy.enqueue(),
            "busy": tasks.busy.enqueue(),
        }
        later = tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
        assert {result.status for result in results.values()} == {TaskResultStatus.READY}
        # CONN_MAX_AGE is 0: a connection is too old for the next task, even in the same thread.
        connecting = [task.enqueue() for task in (tasks.connect, tasks.connect_async) for _ in range(4)]
        self.work("default", "--concurrency", "1")
        for result in [*results.values(), *connecting]:
            result.refresh()
        assert [result.return_value for result in connecting] == [False] * 8
        ended = {name: (str(result.status), result.attempts) for name, result in results.items()}
        assert ended == {
            "added": ("SUCCESSFUL", 1),
            "greeted": ("SUCCESSFUL", 1),
            "again": ("SUCCESSFUL", 2),
            "failed": ("FAILED", 2),
            "given up": ("FAILED", 1),
            "unfit": ("FAILED", 1),
            "slept": ("SUCCESSFUL", 2),
            "busy": ("SUCCESSFUL", 2),
        }, ended
        assert results["added"].return_value == 42
        assert results["greeted"].return_value == "hello you"
        assert results["slept"].return_value == "awake"
        again = results["again"]
        assert again.return_value == {"attempt": 2, "workers": again.worker_ids, "id": again.id}
        assert again.started_at < again.last_attempted_at <= again.finished_at
        assert [error.exception_class for error in again.errors] == [ValueError]
        assert "not yet" in again.errors[0].traceback
        assert [error.exception_class for error in results["failed"].errors] == [ValueError, ValueError]
        assert [run.outcome for run in misfit.history()] == ["bad_arguments"]
        assert misfit.status().state == "scheduled"
        self._check_others(app, strange.task_id, missing.task_id, later)
        self._check_signals()

    def test_each_failure_is_logged_once_and_without_our_own_code(self) -> None:
        result = tasks.fail_always.enqueue()
        log = self.work("default", "--log-level", "info")
        result.refresh()
        assert log.count("dead-lettered") == 1, log
        for text in (log.partition("dead-lettered")[2], *(error.traceback for error in result.errors)):
            assert text.count("raise ValueError") == 1, text
            assert "holdfast/" not in text.partition("Traceback")[2].partition("ValueError: always")[0], text
        assert "state=" not in log, log

    def test_commands_take_the_names_of_the_functions(self) -> None:
        name = f"{tasks.__name__}.divide"
        app = Holdfast(os.environ["CASE_STORE"])
        self.addCleanup(app.close)
        with self.worker():
            eventually(lambda: any(name in each.types for each in app.workers.list()), 30)
            enqueued = self.holdfast("enqueue", name, "--args", '{"number": 6, "by": 3}')["task_id"]
            self.holdfast("schedules", "put", "by-command", "--type", name, "--args", '{"number": 8}', "--every", "1h")
            scheduled = self.holdfast("schedules", "run", "by-command")["task_id"]
            failed = tasks.divide.enqueue(5, 0).id
            assert [self.ended(each).return_value for each in (enqueued, scheduled)] == [2, 4]
            assert self.ended(failed).status == TaskResultStatus.FAILED
            if not os.environ.get("HOLDFAST_KEYS"):  # what is encrypted cannot be searched
                (found,) = self.holdfast("tasks", "ls", "--arg", "number=5")["tasks"]
                assert found["task_id"] == failed
            (replayed,) = self.holdfast("dead", "replay", failed, "--set", "args.by=5")
            assert self.ended(replayed["task_id"]).return_value == 1

    def ended(self, task_id: str) -> Any:
        def found() -> Any:
            result = tasks.divide.get_result(task_id)
            return result if result.is_finished else None

        return eventually(found, 30)

    def _check_others(self, app: Holdfast, strange: str, missing: str, later: Any) -> None:
        # Declared without @task, so it waits, whatever the store says.
        assert {app.handle(task_id).status().state for task_id in (strange, missing)} == {"ready"}
        assert app.handle(later.id).status().state == "scheduled"
        found = asyncio.run(tasks.add.aget_result(later.id))
        assert found.status == TaskResultStatus.READY
        assert found.task.run_after == later.task.run_after
        app.close()

    def _check_signals(self) -> None:
        lines = self.journal()
        assert lines.count("enqueued add READY 0") == 2
        assert "started fail_once RUNNING 2" in lines
        assert [line for line in lines if line.startswith("finished fail_")] in (
            ["finished fail_once SUCCESSFUL 2", "finished fail_always FAILED 2"],
            ["finished fail_always FAILED 2", "finished fail_once SUCCESSFUL 2"],
        )
        assert "finished give_up FAILED 1" in lines
        assert lines.count("finished sleepy SUCCESSFUL 2") == 1
        assert [line for line in lines if line.startswith("finished busy")] == ["finished busy SUCCESSFUL 2"]
        assert "finished greet SUCCESSFUL 1" in lines
