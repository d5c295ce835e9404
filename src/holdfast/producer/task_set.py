"""Declaring task types: on an app, or in a library on a `TaskSet` that apps include; modules that declare them."""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, ParamSpec, Protocol, TypedDict, TypeVar, overload

from holdfast.core.durations import Duration
from holdfast.core.habits import only_known_options
from holdfast.core.payload import MAX_BYTES
from holdfast.core.retry import Retry
from holdfast.core.task import Outcome
from holdfast.errors import BadApp, BadOption, UsageError
from holdfast.producer.options import Options, changed
from holdfast.producer.task_type import FROM_APP, AsyncTaskType, RunIn, TaskDecorator, TaskType, declare

P = ParamSpec("P")
R = TypeVar("R")


class TaskOptions(TypedDict):
    """The options of a declaration, as they were given; None for those of the app."""

    queue: str | None
    priority: int | None
    retry: Retry | None
    timeout: Duration | None
    hard_timeout: Duration | None
    expires: Duration | None


class Declares:
    """What `@app.task` and `@tasks.task` have in common."""

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R | Outcome]], /) -> AsyncTaskType[P, R]: ...

    @overload
    def task(self, function: Callable[P, R | Outcome], /) -> TaskType[P, R]: ...

    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        hard_timeout: Duration | None = None,
        expires: Duration | None = None,
        run: RunIn | None = None,
    ) -> TaskDecorator: ...

    @only_known_options("@app.task()")
    def task(  # noqa: PLR0913  (the options that a task may have)
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        hard_timeout: Duration | None = None,
        expires: Duration | None = None,
        run: RunIn | None = None,
    ) -> Any:
        """Declares a function as a task type; its options hold for every call that does not say otherwise."""
        given = TaskOptions(
            queue=queue,
            priority=priority,
            retry=retry,
            timeout=timeout,
            hard_timeout=hard_timeout,
            expires=expires,
        )
        self._check_options(given)
        if function is None:
            return lambda declared: self._declare(declared, name, given, run)
        return self._declare(function, name, given, run)

    def _check_options(self, given: TaskOptions) -> None:
        raise NotImplementedError

    def _declare(
        self, function: Callable[..., Any], name: str | None, given: TaskOptions, run: RunIn | None
    ) -> TaskType[..., Any]:
        raise NotImplementedError


# -- task sets -----------------------------------------------------------------------------------------------


class Adopts(Protocol):
    """An app, as far as its task sets know it."""

    def adopt(self, task_type: TaskType[..., Any], given: TaskOptions, run: RunIn | None, /) -> None:
        """Makes this one of its task types, with its defaults."""
        ...


class TaskSet(Declares):
    """Task types of a library, which has no app of its own: `app.include(tasks)` makes them those of an app.

    Declared with the same options as `@app.task`; what they leave open is decided by the app. Until it is included,
    its functions can be called, and nothing can be enqueued.
    """

    def __init__(self) -> None:
        self._declared: list[tuple[TaskType[..., Any], TaskOptions, RunIn | None]] = []
        self._app: Callable[[], Adopts | None] = lambda: None
        self._lock = threading.RLock()  # threads of a producer may need the set at the same time

    def _check_options(self, given: TaskOptions) -> None:
        changed(Options(), **given)

    def _declare(
        self, function: Callable[..., Any], name: str | None, given: TaskOptions, run: RunIn | None
    ) -> TaskType[..., Any]:
        if not callable(function):
            raise BadOption(f"@tasks.task takes a function, not {function!r}; options need names, as in queue='images'")
        missing: Any = None
        task_type = declare(missing, function, name, Options(), MAX_BYTES, run)
        for attribute in FROM_APP:
            del task_type.__dict__[attribute]
        task_type.__dict__["needs_app"] = lambda: self._find_app(getattr(function, "__module__", ""), task_type.name)
        with self._lock:
            self._declared.append((task_type, given, run))
            if (app := self._app()) is not None:
                app.adopt(task_type, given, run)
        return task_type

    def included_by(self, app: Adopts) -> None:
        """Makes its task types those of this app; a second time is as once, a second app is refused."""
        with self._lock:
            self._included_by(app)

    def _included_by(self, app: Adopts) -> None:
        before = self._app()
        if before is app:
            return
        if before is not None:
            names = ", ".join(task_type.name for task_type, _, _ in self._declared[:3])
            raise BadOption(
                f"include: this TaskSet ({names}) is included in {before!r}: a call would not know its store; declare "
                "the functions that a second app needs with app.task(name=...)(function)"
            )
        for task_type, given, run in self._declared:
            app.adopt(task_type, given, run)
        self._app = weakref.ref(app)

    def _find_app(self, module: str, type_name: str) -> None:
        """Has the app import this set that names its module, since a producer has no other reason to import that."""
        for load in (lambda each: each.load_one(module), Modules.load):
            for modules in list(_WAITING):
                load(modules)
                if self._app() is not None:
                    return
        raise UsageError(
            f"{type_name} is declared on a TaskSet that no app includes: call app.include(tasks), or name its "
            "module in Holdfast(include=[...]); the module that makes the app must be imported before the enqueue"
        )


# -- modules -------------------------------------------------------------------------------------------------


#: The modules of all apps that have not been imported yet: a task set cannot know which app will name its module.
_WAITING: Final[weakref.WeakSet[Modules]] = weakref.WeakSet()


class Modules:
    """Modules that declare task types of an app, imported when these are first needed: the app must exist before."""

    def __init__(self, app: Adopts) -> None:
        self._app = weakref.ref(app)
        #: Each gives names of modules.
        self._waiting: list[Callable[[], Iterable[str]]] = []

    def add(self, names: Sequence[str]) -> None:
        """Imports these."""
        for name in names:
            if not isinstance(name, str) or not name.replace(".", "").isidentifier():
                raise BadOption(f"include: {name!r} is not a TaskSet or the name of a module, such as 'proj.mail'")
        self._wait_for(lambda: names)

    def discover(self, module: str, packages: Sequence[str] | None) -> None:
        """Imports the module of this name of each package that has one; by default of the installed Django apps."""
        if isinstance(packages, str):
            raise BadOption(f"discover: packages takes a list of names, as in packages=[{packages!r}]")
        self._wait_for(lambda: _found(module, _django_apps(module) if packages is None else packages))

    def _wait_for(self, names: Callable[[], Iterable[str]]) -> None:
        self._waiting.append(names)
        _WAITING.add(self)

    def load(self) -> None:
        """Imports what has not been imported yet, and includes the task sets in it."""
        while self._waiting:
            names = self._waiting[0]
            for name in names():
                self._load(name)
            if names in self._waiting:  # only now: another thread must not go on without them
                self._waiting.remove(names)
        _WAITING.discard(self)

    def load_one(self, name: str) -> None:
        """Imports this module, if it is one of them, and includes the task sets in it."""
        if any(name in names() for names in list(self._waiting)):
            self._load(name)

    def _load(self, name: str) -> None:
        try:
            module = importlib.import_module(name)
        except (Exception, SystemExit) as error:
            raise BadApp(f"include: cannot import {name!r}: {type(error).__name__}: {error}") from error
        app = self._app()
        for found in list(vars(module).values()):
            if isinstance(found, TaskSet) and app is not None:
                found.included_by(app)


def _found(module: str, packages: Sequence[str]) -> Iterable[str]:
    from importlib.util import find_spec

    for package in packages:
        name = f"{package}.{module}"
        try:
            spec = find_spec(name)
        except ModuleNotFoundError as error:
            raise BadApp(f"discover: there is no package {error.name!r}") from None
        if spec is not None:
            yield name


def _django_apps(module: str) -> Sequence[str]:
    try:
        from django.apps import apps

        apps.check_apps_ready()
    except Exception as error:  # noqa: BLE001  (not installed, not configured, or not set up)
        raise BadApp(
            f"discover: Django is not set up ({type(error).__name__}): call django.setup() before, or name the "
            f"packages: app.discover({module!r}, packages=['proj.mail'])"
        ) from None
    return [config.name for config in apps.get_app_configs()]
