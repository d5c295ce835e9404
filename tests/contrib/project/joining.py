"""Tasks that are part of a transaction of Django's, in the same PostgreSQL database."""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction

from holdfast.contrib.django.compat import TaskResultDoesNotExist, task_backends
from tests.contrib.project.case import Case
from tests.contrib.project.jobs import tasks

ADD = tasks.add.using(backend="joined")


class Joining(Case):
    def exists(self, result: Any) -> bool:
        try:
            task_backends["joined"].get_result(result.id)
        except TaskResultDoesNotExist:
            return False
        return True

    def test_a_task_commits_with_the_transaction_that_enqueued_it(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS orders (name text)")
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO orders VALUES ('one')")
            result = ADD.enqueue(1)
            assert not self.exists(result), "seen from outside of the transaction"
        assert self.exists(result)

    def test_a_task_is_rolled_back_with_its_transaction_or_savepoint(self) -> None:
        with transaction.atomic():
            lost = ADD.enqueue(1)
            transaction.set_rollback(True)
        with transaction.atomic():
            kept = ADD.enqueue(2)
            with transaction.atomic():
                also_lost = ADD.enqueue(3)
                transaction.set_rollback(True)
        assert [self.exists(each) for each in (lost, kept, also_lost)] == [False, True, False]

    def test_outside_of_a_transaction_it_is_recorded_at_once_and_run(self) -> None:
        result = ADD.enqueue(41)
        assert self.exists(result)
        self.work("joined")
        result.refresh()
        assert result.return_value == 42
