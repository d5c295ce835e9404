"""`Celery`: an app of Celery's whose tasks are task types of a Holdfast app."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

from holdfast.app import Holdfast
from holdfast.contrib.celery import signals
from holdfast.contrib.celery.app.current import (
    Control,
    Registry,
    current_app,
    current_task,
    require_app,
    set_current,
    shared_task,
    shared_tasks,
)
from holdfast.contrib.celery.app.declaring import django_apps, import_related, imported, make_task, set_up_django
from holdfast.contrib.celery.app.task import (
    MAX_CRASHES,
    aware,
    check_options,
    running,
    seconds_until,
)
from holdfast.contrib.celery.app.task import Task as BaseTask
from holdfast.contrib.celery.canvas import NamedTask, Signature
from holdfast.contrib.celery.exceptions import ImproperlyConfigured
from holdfast.contrib.celery.messages import ID_HEADER, caller_headers, marked, text_headers
from holdfast.contrib.celery.refusals import missing_attribute
from holdfast.contrib.celery.result import AsyncResult
from holdfast.contrib.celery.settings import Settings
from holdfast.core.ids import check_task_id
from holdfast.core.retry import MAX_ATTEMPTS, Retry
from holdfast.errors import UnknownTask
from holdfast.observe.task_log import ATTEMPTS_HEADER
from holdfast.producer.enqueue import Prepared
from holdfast.producer.handle import TaskHandle
from holdfast.producer.options import Options, changed
from holdfast.producer.portal import StoreLink
from holdfast.producer.task_type import TaskType, declare
from holdfast.runtime.interrupts import shielded
from holdfast.stores import documents
from holdfast.stores.contract import DocumentWrite, Store

__all__ = ["Celery", "current_app", "current_task", "require_app", "shared_task"]

#: No exception has this class: exceptions are retried only where the task asks for it.
_NO_EXCEPTION: Final = "holdfast.contrib.celery.NoException"
#: Results that never expire in Celery.
_LONGEST_TTL: Final = timedelta(days=3650)
#: A task is due this long after its enqueue at the latest if Celery would find it expired at once.
_AT_ONCE_S: Final = 0.001
#: In front of an id that the caller gave a task: the name of the memo that has Holdfast's id.
_OWN_ID: Final = "celery-id:"


class Celery:
    """An app: its settings, its tasks, and the Holdfast app that workers run."""

    #: What tasks are made of, unless they name a base.
    Task: type[BaseTask] = BaseTask

    def __init__(
        self,
        main: str | None = None,
        *,
        broker: str | None = None,
        include: Any = (),
        task_cls: Any = None,
        config_source: Any = None,
        namespace: str | None = None,
        set_as_current: bool = True,
        **settings: Any,
    ) -> None:
        self.main = main
        given = {"broker_url": broker, "include": tuple(include or ())}
        known = {name: value for name, value in (given | settings).items() if value is not None}
        self.conf = Settings({name: value for name, value in known.items() if name not in _MADE_BY_CELERY})
        self._base = imported(task_cls) or self.Task
        self._tasks: dict[str, BaseTask] = {}
        self._packages: list[tuple[Any, str]] = []
        self._holdfast: Holdfast | None = None
        self._lock = threading.RLock()
        self.control = Control(self)
        self.on_after_configure = signals.Signal("on_after_configure")
        self.on_after_finalize = signals.Signal("on_after_finalize")
        self.beat_entries: dict[str, dict[str, Any]] = {}
        if config_source is not None:
            self.config_from_object(config_source, namespace=namespace)
        if set_as_current:
            self.set_current()

    # -- settings -------------------------------------------------------------------------------------------

    def config_from_object(self, obj: Any, *_: Any, namespace: str | None = None, **__: Any) -> None:
        """Takes settings from a module or object, such as "django.conf:settings" with namespace="CELERY"."""
        self.conf.read_later(obj, namespace)

    def set_current(self) -> None:
        """Makes it the app of shared tasks."""
        set_current(self)

    set_default = set_current

    # -- declaring ------------------------------------------------------------------------------------------

    def task(self, *args: Any, **options: Any) -> Any:
        """Declares a function as a task, with or without options."""
        if args and callable(args[0]):
            return self._declared(args[0], options)
        return lambda function: self._declared(function, options)

    def register_task(self, task: Any, **_: Any) -> BaseTask:
        """Declares an object of a class of tasks."""
        made: BaseTask = task() if isinstance(task, type) else task
        made.name = made.name or f"{type(made).__module__}.{type(made).__name__}"
        made.bind_to(self)
        self._add(made)
        return made

    def _declared(self, function: Callable[..., Any], options: dict[str, Any]) -> BaseTask:
        task = make_task(function, options.pop("base", None) or self._base, options, self.main)
        task.bind_to(self)
        self._add(task)
        return task

    def _add(self, task: BaseTask) -> None:
        self._tasks.setdefault(task.name, task)
        if self._holdfast is not None:
            self._type_of(task)

    @property
    def tasks(self) -> Mapping[str, BaseTask]:
        """All tasks by name, the shared ones included."""
        return Registry(shared_tasks | self._tasks)

    def autodiscover_tasks(self, packages: Any = None, related_name: str = "tasks", force: bool = False) -> None:
        """Imports the module `related_name` of each package when a worker starts; by default, of Django's apps."""
        self._packages.append((packages, related_name))
        if force:
            self._import_tasks()

    def add_periodic_task(
        self, schedule: Any, sig: Any, args: Any = (), kwargs: Any = None, name: str | None = None, **options: Any
    ) -> str:
        """Adds an entry to the schedules that `holdfast celery beat` converts."""
        key = name or repr(sig)
        arguments = {"args": tuple(args) or sig.args, "kwargs": kwargs or sig.kwargs}
        self.beat_entries[key] = {"task": sig.task, "schedule": schedule, "options": options, **arguments}
        return key

    # -- calling --------------------------------------------------------------------------------------------

    def send_task(
        self, name: str, args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any
    ) -> AsyncResult:
        """Enqueues a call of a task by its name, which this process need not have."""
        check_options(options, f"send_task({name!r})")
        return self.publish(name, tuple(args or ()), dict(kwargs or {}), task_id, options, self.tasks.get(name))

    def publish(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        task_id: str | None,
        options: Mapping[str, Any],
        task: BaseTask | None,
    ) -> AsyncResult:
        """Enqueues a call, between the signals before and after it."""
        prepared = self.prepare(name, args, kwargs, task_id, options, task)
        headers = dict(prepared.headers)
        own_id = task_id or prepared.task_id
        body = (args, kwargs, {"callbacks": None, "errbacks": None, "chain": None, "chord": None})
        message = {"body": body, "exchange": "", "routing_key": prepared.queue}
        told = {"id": own_id, "task": name, "root_id": own_id, **caller_headers(headers)}
        if signals.before_task_publish.receivers:
            own = {"id", "task", "root_id"}
            more = {"properties": {"correlation_id": own_id}, "declare": [], "retry_policy": {}}
            signals.before_task_publish.send(name, headers=told, **message, **more)
            prepared.add_headers(text_headers({key: value for key, value in told.items() if key not in own}))
        if task_id is not None:
            prepared.add_headers({ID_HEADER: task_id})
        handle = prepared.enqueue()
        if task_id is not None:  # known already, it is that of the task enqueued first
            self._note_id(task_id, handle.task_id)
        if signals.after_task_publish.receivers:
            signals.after_task_publish.send(name, headers=told, **message)
        return AsyncResult(own_id, self, task_id=handle.task_id)

    def prepare(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        task_id: str | None,
        options: Mapping[str, Any],
        task: BaseTask | None,
    ) -> Prepared[Any]:
        """A call that is not enqueued yet."""
        task_type = self._type_of(task) if task is not None else self._stub(name)
        chosen = self._options(name, args, kwargs, options, task)
        headers = text_headers(chosen.pop("headers"))
        retries = (BaseTask.max_retries or 0) if task is None else task.most_retries()
        headers[ATTEMPTS_HEADER] = str(min(MAX_ATTEMPTS, retries + 1))
        call = task_type.using(request_id=task_id, headers=headers, **chosen)
        return call.prepare(marked(list(args)), marked(kwargs))

    def signature(
        self, task: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Signature:
        """A call as an object, of a task or of the name of one, which this process need not have."""
        found = self.tasks.get(task) or NamedTask(self, task) if isinstance(task, str) else task
        return Signature(found, args, kwargs, **options)

    def now(self) -> datetime:
        """The current time, in the time zone of the settings."""
        return datetime.now(ZoneInfo(self.conf.zone))

    def AsyncResult(self, task_id: str, **_: Any) -> AsyncResult:  # noqa: N802  (Celery's name)
        """The result of a task, by its id."""
        return AsyncResult(task_id, self)

    def _options(
        self, name: str, args: Any, kwargs: Any, options: Mapping[str, Any], task: BaseTask | None
    ) -> dict[str, Any]:
        """The options of a call as `using` takes them: those of the call, else of the task, else of the routes."""
        conf = self.conf
        own = {key: getattr(task, key, None) for key in _OF_TASKS}
        layers = (conf.route(name, args, kwargs, options, task), own, options)
        merged = {key: value for layer in layers for key, value in layer.items() if value is not None}
        queue = merged.get("queue") or conf.task_default_queue
        soft = merged.get("soft_time_limit", conf.task_soft_time_limit)
        hard = merged.get("time_limit", conf.task_time_limit)
        chosen = {
            "queue": str(getattr(queue, "name", queue)),
            "priority": conf.priority(merged.get("priority", conf.task_default_priority)),
            "timeout": soft if hard is None or soft is None else min(soft, hard),
            "hard_timeout": hard,
            "headers": merged.get("headers") or {},
        }
        if merged.get("expires") is not None:
            chosen["expires"] = max(_AT_ONCE_S, seconds_until(merged["expires"], conf.zone))
        if merged.get("eta") is not None:
            chosen["run_at"] = aware(merged["eta"], conf.zone)
        elif merged.get("countdown"):
            chosen["run_at"] = datetime.now(UTC) + timedelta(seconds=float(merged["countdown"]))
        return chosen

    # -- Holdfast -------------------------------------------------------------------------------------------

    @property
    def holdfast(self) -> Holdfast:
        """The Holdfast app with all tasks of this one, for workers: `holdfast worker proj.celery:app`."""
        self._import_tasks()
        app = self.store_app()
        for task in self.tasks.values():
            self._type_of(task)
        return app

    def store_app(self) -> Holdfast:
        """The Holdfast app with the tasks that are known so far, for producers."""
        with shielded(), self._lock:
            if self._holdfast is None:
                self._holdfast = self._made()
            return self._holdfast

    def _made(self) -> Holdfast:
        url = self.conf.holdfast_url
        if not url and not os.environ.get("HOLDFAST_URL"):
            raise ImproperlyConfigured(
                "set holdfast_url (CELERY_HOLDFAST_URL in Django's settings) or HOLDFAST_URL: the store that takes the "
                "place of broker and result backend, such as postgresql://localhost/app"
            )
        expires = self.conf.result_expires
        ttl = _LONGEST_TTL if expires in {None, 0} else expires
        app = Holdfast(url or None, queue=self.conf.task_default_queue, result_ttl=ttl)
        app.declare_queues(*(str(getattr(each, "name", each)) for each in self.conf.task_queues or ()))
        app.lifespan(self._lifespan)
        return app

    def _type_of(self, task: BaseTask) -> TaskType[..., Any]:
        from holdfast.contrib.celery.running import runner

        with shielded(), self._lock:
            app = self.store_app()
            if task.name not in app.task_types:
                chosen = self._options(task.name, (), {}, {}, task)
                app.task(
                    name=task.name,
                    queue=chosen["queue"],
                    priority=chosen["priority"],
                    retry=_policy(task.most_retries()),
                    timeout=chosen["timeout"],
                    hard_timeout=chosen["hard_timeout"],
                    run="thread" if self.conf.runs_in_threads else "process",
                )(runner(task))
            return app.task_types[task.name]

    def _stub(self, name: str) -> TaskType[..., Any]:
        """A type of this name that this app's workers do not have: the task runs elsewhere."""
        app = self.store_app()
        options = changed(Options(policy=app.policy, crypto=app.crypto), retry=_policy(BaseTask.max_retries or 0))
        return declare(app._recorder, _elsewhere, name, options, app.max_payload)  # noqa: SLF001  (not declared there)

    def _import_tasks(self) -> None:
        set_up_django()
        for module in (*self.conf.imports, *self.conf.include):
            importlib.import_module(module)
        for packages, related_name in self._packages:
            found = packages() if callable(packages) else packages
            for package in django_apps() if found is None else found:
                import_related(package, related_name)
        self.on_after_configure.send(self)
        self.on_after_finalize.send(self)

    @contextmanager
    def _lifespan(self) -> Iterator[None]:
        signals.worker_init.send(self)
        signals.worker_process_init.send(None)
        signals.worker_ready.send(self)
        try:
            yield
        finally:
            signals.worker_process_shutdown.send(None, pid=os.getpid(), exitcode=0)
            signals.worker_shutdown.send(self)

    # -- following ------------------------------------------------------------------------------------------

    def handle(self, task_id: str) -> TaskHandle[Any]:
        """Follows a task by Holdfast's id, or by the one that its caller gave it; `UnknownTask` if it is neither."""
        app = self.store_app()
        with suppress(UnknownTask):
            return app.handle(check_task_id(task_id))

        async def find(store: Store) -> bytes | None:
            found = await documents.one(store, documents.MEMO, f"{_OWN_ID}{task_id}")
            return None if found is None else found.value

        link = self._link()
        found = link.run(find(link.store()))
        if found is None:
            raise UnknownTask(f"no task was enqueued with task_id={task_id!r}")
        return app.handle(found.decode())

    def _note_id(self, own_id: str, task_id: str) -> None:
        app = self.store_app()
        write = DocumentWrite(
            kind=documents.MEMO, name=f"{_OWN_ID}{own_id}", value=task_id.encode(), ttl_ms=app.policy.dead_letter_ttl_ms
        )
        link = self._link()
        link.run(link.store().put(write))

    def _link(self) -> StoreLink:
        return self.store_app()._link  # noqa: SLF001  (the app has no public call for documents)

    def close(self) -> None:
        """Closes the store."""
        if self._holdfast is not None:
            self._holdfast.close()

    def finalize(self, **_: Any) -> None:
        """Nothing is left to do: tasks are declared as they are needed."""

    @property
    def current_task(self) -> BaseTask | None:
        """The task that this code runs in."""
        return running.get()[-1][0] if running.get() else None

    if not TYPE_CHECKING:  # or a checker would believe in every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute("app", self, name)

    def __repr__(self) -> str:
        return f"<Celery {self.main or '__main__'}>"


#: Options of a call that its task may have declared.
_OF_TASKS: Final = ("queue", "priority", "expires", "soft_time_limit", "time_limit")
_MADE_BY_CELERY: Final = frozenset({"backend", "loader", "log", "control", "autofinalize", "fixups", "strict_typing"})


def _policy(retries: int) -> Retry:
    attempts = min(MAX_ATTEMPTS, retries + MAX_CRASHES)
    return Retry(max_attempts=attempts, base="1s", cap="1m", retry_on=(_NO_EXCEPTION,))


def _elsewhere(args: list[Any], kwargs: dict[str, Any]) -> None:
    raise NotImplementedError("this task runs in another process")
