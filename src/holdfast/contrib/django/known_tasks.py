"""The Django tasks of a backend as task types of an app: those, and nothing else, can be run."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import Any

import msgspec
from django.utils.module_loading import autodiscover_modules

from holdfast.app import Holdfast
from holdfast.contrib.django.arguments import read_envelopes
from holdfast.contrib.django.compat import Task
from holdfast.contrib.django.policy import policy_of
from holdfast.contrib.django.running import runner
from holdfast.contrib.django.schedules import declare_schedules
from holdfast.contrib.django.settings import BackendOptions, options_of, refused
from holdfast.errors import BadName, UsageError
from holdfast.producer.task_type import TaskType
from holdfast.runtime.forks import lock
from holdfast.runtime.interrupts import shielded


class KnownTasks:
    """The app of one backend, shared by all threads; Django makes a backend for each."""

    def __init__(self, alias: str, options: BackendOptions, *, in_tests: bool = False) -> None:
        self.alias = alias
        #: Whether tasks run inside of a test, with its connections: those are left alone.
        self.in_tests = in_tests
        self.options = options
        self.app: Holdfast = options.make_app()
        self._tasks: dict[str, Any] = {}
        self._lock = lock()

    def type_of(self, task: Any) -> TaskType[..., Any]:
        """The task type of a task, which bears the path of its function as its name."""
        path = task.module_path
        with shielded(), self._lock:
            if path not in self._tasks:
                self._declare(path, task)
            return self.app.task_types[path]

    def _declare(self, path: str, task: Any) -> None:
        queue = task.queue_name if task.backend == self.alias else None  # those of other backends wait there
        policy = policy_of(task.func)
        try:
            declared = self.app.task(
                name=path,
                queue=queue,
                priority=int(task.priority),
                retry=policy.retry,
                timeout=policy.timeout,
                hard_timeout=policy.hard_timeout,
                expires=self.options.expires if policy.expires is None else policy.expires,
                run=policy.run,
            )(runner(self, task))
        except BadName:
            if path not in self.app.task_types:
                raise
            return  # a signal handler has declared it meanwhile
        read_envelopes(task, declared.codec)
        self._tasks[path] = replace(task, run_after=None)  # that is one of this call only
        if task.backend == self.alias:
            declare_schedules(task, self.app, declared)

    def find(self, path: str) -> Any | None:
        """The task whose function has this path, if it has been imported or is where tasks are looked for."""
        if path not in self._tasks:
            self.discover()
        return self._tasks.get(path)

    def discover(self) -> None:
        """Makes all tasks known that there are; what is not declared with `@task` is none, whatever a store says."""
        autodiscover_modules("tasks")
        for name in self.options.modules:
            importlib.import_module(name)
        for module in list(sys.modules.values()):
            # The type is asked, not the object: lazy ones would be made.
            for value in list(getattr(module, "__dict__", {}).values()):
                if issubclass(type(value), Task):
                    self.type_of(value)


_known: dict[tuple[str, bool, bytes], KnownTasks] = {}
_lock = lock()


def known_tasks(alias: str, given: dict[str, Any], *, in_tests: bool = False) -> KnownTasks:
    """Those of the backend with these OPTIONS, the same for every thread; those of a test backend are its own."""
    options = options_of(alias, given)
    key = alias, in_tests, msgspec.json.encode(options, enc_hook=repr)
    with shielded(), _lock:
        found = _known.get(key)
        if found is None:
            try:
                found = _known[key] = KnownTasks(alias, options, in_tests=in_tests)
            except UsageError as error:
                raise refused(alias, error) from None
        return found
