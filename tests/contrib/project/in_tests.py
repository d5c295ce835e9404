"""Tests as a project writes them, with the backend for tests."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.contenttypes.models import ContentType
from django.db import transaction
from django.test import TestCase, TransactionTestCase
from django.utils import timezone

from holdfast.contrib.django.compat import TaskResultStatus, task_backends
from holdfast.testing import assert_enqueued, run_due
from tests.contrib.project.case import Case
from tests.contrib.project.jobs import tasks

SUCCESSFUL, READY, FAILED = TaskResultStatus.SUCCESSFUL, TaskResultStatus.READY, TaskResultStatus.FAILED


def new_row() -> None:
    ContentType.objects.create(app_label="shop", model=f"order{ContentType.objects.count()}")


class InATestCase(TestCase):  # type: ignore[misc]
    """Everything is in one transaction that is rolled back."""

    def setUp(self) -> None:
        for alias in ("default", "after_commit", "joined", "raising", "lazy"):
            task_backends[alias].clear()
        new_row()

    def test_a_task_runs_at_once_with_current_and_sees_the_rows_of_the_test(self) -> None:
        for task in (tasks.count_types, tasks.acount_types):
            result = task.enqueue("shop")
            assert result.status == SUCCESSFUL
            assert result.return_value == {"rows": 1, "id": result.id}
            assert (result.attempts, result.worker_ids) == (1, ["test:1"])

    async def test_async_tests_too(self) -> None:
        for task in (tasks.count_types, tasks.acount_types):
            result = await task.aenqueue("shop")
            assert result.return_value == {"rows": 1, "id": result.id}
            result = await task.using(backend="after_commit").aenqueue("shop")
            assert result.return_value == {"rows": 1, "id": result.id}

    def test_the_transaction_of_the_test_is_none_of_the_tested_code(self) -> None:
        for alias in ("default", "after_commit", "joined"):
            assert tasks.count_types.using(backend=alias).enqueue("shop").status == SUCCESSFUL

    def test_tasks_enqueue_tasks(self) -> None:
        assert tasks.count_by_another.enqueue("shop").return_value == 1

    def test_queries_of_a_task_are_counted_and_no_others(self) -> None:
        with self.assertNumQueries(2):
            tasks.count_types.enqueue("shop")
            ContentType.objects.count()

    def test_a_task_waits_for_the_commit(self) -> None:
        for alias in ("after_commit", "joined"):
            with self.captureOnCommitCallbacks(execute=True) as callbacks, transaction.atomic():
                result = tasks.count_types.using(backend=alias).enqueue("shop")
                assert (result.status, result.enqueued_at) == (READY, None)
            assert len(callbacks) == 2
            assert (result.status, result.return_value["rows"]) == (SUCCESSFUL, 1)

    def test_without_a_commit_it_never_runs(self) -> None:
        with self.captureOnCommitCallbacks() as callbacks, transaction.atomic():
            tasks.count_types.using(backend="after_commit").enqueue("shop")
        assert callbacks
        assert run_due(task_backends["after_commit"].known.app) == []

    def test_an_error_is_retried_without_waiting_and_is_in_the_result(self) -> None:
        result = tasks.fail_once.enqueue("no")
        assert (result.status, result.attempts) == (SUCCESSFUL, 2)
        result = tasks.fail_always.enqueue()
        assert (result.status, len(result.errors)) == (FAILED, 2)
        assert result.errors[0].exception_class is ValueError

    def test_an_error_is_raised_if_asked_for(self) -> None:
        with pytest.raises(ValueError, match="always"):
            tasks.fail_always.using(backend="raising").enqueue()

    def test_a_task_for_later_runs_now_and_the_clock_jumps(self) -> None:
        test = task_backends["default"].test
        begun = test.now
        later = tasks.add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(1)
        assert later.return_value == 2
        assert test.now - begun > timedelta(hours=23)

    def test_a_lazy_backend_runs_when_it_is_told(self) -> None:
        backend = task_backends["lazy"]
        result = tasks.count_types.using(backend="lazy").enqueue("shop")
        assert result.status == READY
        found = assert_enqueued(backend.known.type_of(tasks.count_types), "shop")
        assert [task.task_id for task in found] == [result.id]
        (ran,) = backend.test.run_due()
        assert (ran.type, ran.outcome) == (tasks.count_types.module_path, "succeeded")
        result.refresh()
        assert result.return_value["rows"] == 1


class WithCommits(TransactionTestCase):  # type: ignore[misc]
    """Transactions are real ones."""

    def enqueue(self, alias: str, *, fails: bool) -> Any:
        result = None
        try:
            with transaction.atomic():
                new_row()
                result = tasks.count_types.using(backend=alias).enqueue("shop")
                if fails:
                    raise KeyError
        except KeyError:
            pass
        return result

    def test_a_task_runs_after_the_commit_and_not_after_a_rollback(self) -> None:
        for number, alias in enumerate(("after_commit", "joined"), 1):
            task_backends[alias].clear()
            assert self.enqueue(alias, fails=False).return_value["rows"] == number
            assert self.enqueue(alias, fails=True).status == READY
            assert task_backends[alias].test.run_due() == []


class Signals(Case):
    """In the order of production."""

    def test_enqueued_started_finished(self) -> None:
        before = len(self.journal())
        tasks.add.enqueue(1)
        assert [line.split()[0] for line in self.journal()[before:]] == ["enqueued", "started", "finished"]
