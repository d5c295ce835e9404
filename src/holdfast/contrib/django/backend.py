"""The backend: Django's tasks recorded in a Holdfast store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from holdfast.contrib.django.arguments import POSITIONAL, as_given
from holdfast.contrib.django.compat import BaseTaskBackend, InvalidTask, TaskResultDoesNotExist, task_enqueued
from holdfast.contrib.django.headers import current_headers
from holdfast.contrib.django.known_tasks import KnownTasks, known_tasks
from holdfast.contrib.django.results import RUN_AFTER, new_result, note, result_of
from holdfast.core.names import check_queue, check_type
from holdfast.core.task import Task
from holdfast.errors import BadName, BadOption, UnknownTask
from holdfast.producer.enqueue import Prepared
from holdfast.producer.hooks import checked_outgoing
from holdfast.producer.options import joined


class HoldfastBackend(BaseTaskBackend):  # type: ignore[misc]  # Django has no types
    """Records tasks; `manage.py holdfast_worker` runs them."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.known = self._known_tasks(self.options)

    def _known_tasks(self, options: dict[str, Any]) -> KnownTasks:
        return known_tasks(self.alias, options)

    # -- recording ------------------------------------------------------------------------------------------

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Records a call: now, after the commit or with it, as OPTIONS say."""
        self.validate_task(task)
        call = self._call(task, args, kwargs)
        result = self._new_result(task, args, kwargs)
        options = self.known.options
        if options.database is not None and self._in_transaction(options.database):
            return self._enqueue_within(call, result, options.database)
        if options.on_commit and self._in_transaction(DEFAULT_DB_ALIAS):
            return self._enqueue_after_commit(call, result, DEFAULT_DB_ALIAS)
        return self._enqueue_now(call, result)

    def _in_transaction(self, database: str) -> bool:
        connection = connections[database]
        # Without asking the connection, which would open one that is not needed.
        by_hand = connection.connection is not None and not connection.autocommit
        return bool(connection.in_atomic_block or by_hand)

    def _enqueue_within(self, call: Prepared[Any], result: Any, database: str) -> Any:
        call.options = joined(call.options, connections[database])
        return self._enqueue_now(call, result)

    def _enqueue_now(self, call: Prepared[Any], result: Any) -> Any:
        note(result, id=call.enqueue().task_id, enqueued_at=timezone.now())
        task_enqueued.send_robust(type(self), task_result=result)
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """As `enqueue`, for async callers."""
        if self.known.options.on_commit or self.known.options.database is not None:
            # Transactions of Django live in a thread.
            return await super().aenqueue(task, args, kwargs)
        self.validate_task(task)
        call = self._call(task, args, kwargs)
        result = self._new_result(task, args, kwargs)
        handle = await call.aenqueue()
        note(result, id=handle.task_id, enqueued_at=timezone.now())
        await task_enqueued.asend_robust(type(self), task_result=result)
        return result

    def _call(self, task: Any, args: Any, kwargs: Any) -> Prepared[Any]:
        """The call, with its arguments checked and encoded."""
        call = self.known.type_of(task).using(queue=task.queue_name, priority=int(task.priority))
        headers = current_headers()
        if args:
            headers[POSITIONAL] = str(len(args))
        if task.run_after is not None:
            run_at = task.run_after if timezone.is_aware(task.run_after) else timezone.make_aware(task.run_after)
            headers[RUN_AFTER] = task.run_after.isoformat()
            call = call.using(run_at=run_at)
        return call.using(headers=headers).prepare(*args, **kwargs)

    def _new_result(self, task: Any, args: Any, kwargs: Any) -> Any:
        return new_result(task, self.alias, *as_given(task, len(args), args, kwargs))

    def _enqueue_after_commit(self, prepared: Prepared[Any], result: Any, database: str) -> Any:
        task_id = prepared.task_id
        prepared.options.new_task(task_id, prepared.type, prepared.payload)  # what is refused is refused here

        def record() -> None:
            prepared.enqueue()  # signed now: a signature holds for an hour, and a transaction may take longer
            note(result, enqueued_at=timezone.now())
            task_enqueued.send_robust(type(self), task_result=result)

        note(result, id=task_id)
        transaction.on_commit(record, using=database)
        return result

    # -- looking --------------------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> Any:
        """What the store knows of a task, from any process."""
        try:
            return self._shown(self.known.app.handle(result_id).status().record)
        except UnknownTask as error:
            raise TaskResultDoesNotExist(str(error)) from None

    async def aget_result(self, result_id: str) -> Any:
        """As `get_result`, for async callers."""
        try:
            return self._shown((await self.known.app.handle(result_id).astatus()).record)
        except UnknownTask as error:
            raise TaskResultDoesNotExist(str(error)) from None

    def _shown(self, record: Task) -> Any:
        task = self.known.find(record.type)
        if task is None:
            raise TaskResultDoesNotExist(f"task {record.task_id} is one of {record.type}, which is no task here")
        return result_of(task, self.alias, record, self.known.type_of(task))

    # -- checking -------------------------------------------------------------------------------------------

    def validate_task(self, task: Any) -> None:
        """As every backend does, and that the store takes the names of the queue and of the function."""
        super().validate_task(task)
        try:
            check_queue(task.queue_name)
            check_type(task.module_path)
        except BadName as error:
            raise InvalidTask(str(error)) from None

    def check(self, **kwargs: Any) -> Iterable[Any]:
        """For `manage.py check`: settings that would be refused at the first task."""
        del kwargs
        for queue in self.queues:
            try:
                check_queue(queue)
            except BadName as error:
                yield checks.Error(f"TASKS[{self.alias!r}]: QUEUES: {error}", id="holdfast.E001")
        yield from self._check_outgoing()
        database = self.known.options.database
        if database is not None and database not in connections:
            yield checks.Error(f"TASKS[{self.alias!r}]: database: there is no {database!r}", id="holdfast.E002")
        elif database is not None and not self.known.in_tests and connections[database].vendor != "postgresql":
            yield checks.Error(
                f"TASKS[{self.alias!r}]: database: {database!r} is not a PostgreSQL database; use on_commit instead",
                id="holdfast.E003",
            )

    def _check_outgoing(self) -> Iterable[Any]:
        path = self.known.options.outgoing
        if path is None:
            return
        try:
            checked_outgoing(import_string(path))
        except (ImportError, BadOption) as error:
            yield checks.Error(f"TASKS[{self.alias!r}]: outgoing: {error}", id="holdfast.E004")
