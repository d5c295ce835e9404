"""The current app and task, the tasks that every app shares, and what an app tells its workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.contrib.celery.app.declaring import make_task
from holdfast.contrib.celery.app.task import Task, running
from holdfast.contrib.celery.exceptions import ImproperlyConfigured, NotRegistered
from holdfast.contrib.celery.refusals import REFUSED_IMPORTS, refuse

if TYPE_CHECKING:
    from holdfast.contrib.celery.app import Celery

#: Shared tasks by name; every app has them.
shared_tasks: dict[str, Task] = {}
_current: list[Celery] = []


class Control:
    """`app.control`: revoking, and nothing else."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def revoke(self, task_id: str | list[str], **_: Any) -> None:
        """Cancels tasks; one that runs is told."""
        for each in [task_id] if isinstance(task_id, str) else task_id:
            self._app.AsyncResult(each).revoke()

    def __getattr__(self, name: str) -> Any:
        refuse(f"app.control.{name}", REFUSED_IMPORTS["celery.app.control"])


class Registry(dict[str, Task]):
    """Tasks by name; `NotRegistered` for one that is not there."""

    def __missing__(self, name: str) -> Task:
        raise NotRegistered(name)


class _CurrentApp:
    """`current_app`: the app that was made last."""

    def __getattr__(self, name: str) -> Any:
        return getattr(require_app("current_app"), name)


class _CurrentTask:
    """`current_task`: the task that this code runs in."""

    def __getattr__(self, name: str) -> Any:
        runs = running.get()
        if not runs:
            raise AttributeError(f"current_task.{name}: no task runs here")
        return getattr(runs[-1][0], name)

    def __bool__(self) -> bool:
        return bool(running.get())


current_app: Any = _CurrentApp()
current_task: Any = _CurrentTask()


def shared_task(*args: Any, **options: Any) -> Any:
    """Declares a function as a task of every app."""

    def declare(function: Callable[..., Any]) -> Task:
        given = dict(options)
        task = make_task(function, given.pop("base", None) or Task, given, None)
        return shared_tasks.setdefault(task.name, task)

    return declare(args[0]) if args and callable(args[0]) else declare


def set_current(app: Celery) -> None:
    """Makes it the app of shared tasks."""
    _current[:] = [app]


def require_app(what: str) -> Celery:
    """The current app."""
    if not _current:
        raise ImproperlyConfigured(f"{what} needs an app: import the module that makes Celery(…) first")
    return _current[0]
