"""`AsyncResult`: a task followed by its id, with Celery's names for its states."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.contrib.celery import states
from holdfast.contrib.celery.app.task import running
from holdfast.contrib.celery.exceptions import TaskRevokedError, TimeoutError  # noqa: A004
from holdfast.contrib.celery.messages import loads, unmarked
from holdfast.contrib.celery.refusals import missing, missing_attribute
from holdfast.core.task import FINAL_STATES, State
from holdfast.errors import Refused, ResultTimeout, UnknownTask
from holdfast.producer.handle import TaskHandle
from holdfast.producer.task_info import TaskInfo

if TYPE_CHECKING:
    from holdfast.contrib.celery.app import Celery


class AsyncResult:
    """One task, by its id."""

    def __init__(self, id: str, app: Celery | None = None, task_id: str | None = None, **_: Any) -> None:  # noqa: A002
        from holdfast.contrib.celery.app import require_app

        self.app = app or require_app("AsyncResult")
        self.id = id
        #: Holdfast's id, which is another one where the caller has given the task its own.
        self._task_id = task_id or id

    @property
    def _handle(self) -> TaskHandle[Any]:
        return self.app.handle(self._task_id)

    @property
    def task_id(self) -> str:
        """The id."""
        return self.id

    # -- waiting --------------------------------------------------------------------------------------------

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float = 0.5,  # noqa: ARG002  (Celery's option)
        disable_sync_subtasks: bool = True,
        **_: Any,
    ) -> Any:
        """What the task returned, as soon as it has ended; raises what it raised."""
        if disable_sync_subtasks and running.get():
            raise RuntimeError("Never call result.get() within a task: it keeps a slot of the worker for its wait")
        try:
            task = self._handle.wait(timeout)
        except ResultTimeout as error:
            raise TimeoutError(str(error)) from None
        value = self._value(task)
        if propagate and task.state is not State.SUCCEEDED:
            raise value
        return value

    wait = get

    def maybe_throw(self, propagate: bool = True, **_: Any) -> Any:
        """The result so far; raises what the task raised."""
        value = self.result
        if propagate and isinstance(value, BaseException):
            raise value
        return value

    # -- looking --------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """Celery's name of its state, or the one that `update_state` told."""
        return self._state(self._task())

    status = state

    @property
    def result(self) -> Any:
        """What the task returned or raised; before that, the meta of `update_state`."""
        task = self._task()
        return None if task is None else self._value(task)

    info = result

    @property
    def traceback(self) -> str | None:
        """The traceback of the last error, as text."""
        task = self._task()
        error = None if task is None else task.error
        return error.traceback if error and self._state(task) in states.EXCEPTION_STATES else None

    def ready(self) -> bool:
        """Whether the task has ended."""
        return self.state in states.READY_STATES

    def successful(self) -> bool:
        """Whether the task has succeeded."""
        return self.state == states.SUCCESS

    def failed(self) -> bool:
        """Whether the task has failed."""
        return self.state == states.FAILURE

    @property
    def name(self) -> str | None:
        """The name of the task."""
        task = self._task()
        return None if task is None else task.type

    @property
    def queue(self) -> str | None:
        """The queue of the task."""
        task = self._task()
        return None if task is None else task.queue

    @property
    def args(self) -> Any:
        """The arguments by position."""
        return self._arguments("args")

    @property
    def kwargs(self) -> Any:
        """The arguments by name."""
        return self._arguments("kwargs")

    @property
    def retries(self) -> int:
        """How often the task has been retried."""
        task = self._task()
        return 0 if task is None else max(0, task.attempt - 1)

    @property
    def date_done(self) -> datetime | None:
        """When the task has ended."""
        task = self._task()
        return None if task is None else task.finished_at

    children = None
    parent = None

    # -- acting ---------------------------------------------------------------------------------------------

    def revoke(self, **_: Any) -> None:
        """Cancels the task; one that runs is told, and killed if it runs in a process of its own."""
        try:
            self._handle.cancel("revoked")
        except (Refused, UnknownTask):  # it has ended: Celery does not tell either
            return

    def forget(self) -> None:
        """Leaves the result to its end: the store deletes it after `result_expires`."""

    # -- inside ---------------------------------------------------------------------------------------------

    def _task(self) -> TaskInfo | None:
        try:
            return self._handle.status()
        except UnknownTask:
            return None

    def _state(self, task: TaskInfo | None) -> str:
        if task is None:
            return states.PENDING
        noted = _noted(task)
        if noted is not None:
            return noted[0]
        state = states.name_of(task.state)
        return states.PENDING if state == states.STARTED and not self.app.conf.task_track_started else state

    def _value(self, task: TaskInfo) -> Any:
        if task.state is State.SUCCEEDED:
            return unmarked(task.result)
        if task.state is State.CANCELLED:
            return TaskRevokedError(task.reason or "revoked")
        noted = _noted(task)
        if noted is not None:
            return noted[1]
        return _raised(task) if task.state in FINAL_STATES | {State.RETRY_PENDING} else None

    def _arguments(self, part: str) -> Any:
        task = self._task()
        return None if task is None else unmarked(task.args[part])

    if not TYPE_CHECKING:  # or a checker would believe in every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute("result", self, name)

    def __eq__(self, other: object) -> bool:
        return other.id == self.id if isinstance(other, AsyncResult) else other == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.id}>"


class EagerResult(AsyncResult):
    """The result of a task that ran in this process."""

    def __init__(
        self,
        id: str,  # noqa: A002  (Celery's name)
        value: Any,
        state: str,
        *,
        traceback: str | None = None,
        name: str | None = None,
    ) -> None:
        self.id = id
        self._known = state, value, traceback, name

    state = property(lambda self: self._known[0])
    status = state
    result = property(lambda self: self._known[1])
    info = result
    traceback = property(lambda self: self._known[2])
    name = property(lambda self: self._known[3])

    def get(self, timeout: float | None = None, propagate: bool = True, *_: Any, **__: Any) -> Any:  # noqa: ARG002
        """What the task returned; raises what it raised."""
        state, value, *_rest = self._known
        if propagate and state in states.PROPAGATE_STATES:
            raise value if isinstance(value, BaseException) else RuntimeError(value)
        return value

    wait = get

    def revoke(self, **_: Any) -> None:
        """Nothing is left to be revoked."""


def _noted(task: TaskInfo) -> tuple[str, Any] | None:
    """State and meta of `update_state` in the run that goes on."""
    note = task.progress.note if task.state is State.CLAIMED else None
    if note is None or not note.startswith("["):
        return None
    state, meta = loads(note)
    return state, meta


def _raised(task: TaskInfo) -> BaseException | None:
    """The last error of a task, of its own class where that is known in this process."""
    error = task.error
    if error is None:
        return None
    module, _, name = error.type.rpartition(".")
    known = getattr(sys.modules.get(module), name, None)
    if isinstance(known, type) and issubclass(known, BaseException):
        try:
            return known(error.message)
        except Exception:  # noqa: BLE001  (a class that takes other arguments)
            known = None
    made: BaseException = type(name, (Exception,), {"__module__": module})(error.message)
    return made


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
