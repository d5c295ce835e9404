"""Makes tasks of functions, and imports the modules that declare them."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.contrib.celery.app.task import Task, check_options
from holdfast.contrib.celery.refusals import refuse


def make_task(function: Callable[..., Any], base: type[Task], options: dict[str, Any], main: str | None) -> Task:
    """The task of a function."""
    name = options.pop("name", None) or _name_of(function, main)
    if inspect.iscoroutinefunction(function):
        refuse(f"task {name}", "an `async def` is no task of Celery's; declare it with @app.task of a Holdfast app")
    check_options(options, f"task {name}")
    bound = options.pop("bind", False)
    attributes = {
        "run": function if bound else staticmethod(function),
        "name": name,
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        "__wrapped__": function,
        **options,
    }
    made: Task = type(function.__name__, (base,), attributes)()
    return made


def _name_of(function: Callable[..., Any], main: str | None) -> str:
    module = function.__module__
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None) or "__main__"
        module = main or Path(file).stem
    return f"{module}.{function.__name__}"


def imported(reference: Any) -> Any:
    """The object behind `module:name` or `module.name`; anything else is the object itself."""
    if not isinstance(reference, str):
        return reference
    module, _, name = reference.replace(":", ".").rpartition(".")
    return getattr(importlib.import_module(module), name)


def import_related(package: str, related_name: str) -> None:
    """Imports the module of this name in a package, if it has one."""
    name = f"{package}.{related_name}" if related_name else package
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # the package, or what the module itself imports
            raise


def set_up_django() -> None:
    """Sets up the Django project that the environment names, as a worker needs it."""
    if os.environ.get("DJANGO_SETTINGS_MODULE"):
        import django
        from django.apps import apps

        if not apps.ready:
            django.setup()


def django_apps() -> list[str]:
    """The names of the installed apps of the Django project, if there is one."""
    if not os.environ.get("DJANGO_SETTINGS_MODULE"):
        return []
    from django.apps import apps

    return [config.name for config in apps.get_app_configs()]
