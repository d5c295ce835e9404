"""`manage.py holdfast_worker`: `holdfast worker` for the tasks of this project."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import click
from django.core.management.base import BaseCommand, CommandError

from holdfast.cli.worker import worker
from holdfast.contrib.django.backend import HoldfastBackend
from holdfast.contrib.django.compat import task_backends

_APP = "holdfast.contrib.django.worker_app"


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    """Takes the options of `holdfast worker`, and becomes it: what watches over tasks has none of their code."""

    help = "Run the tasks of this project until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: Any) -> None:
        """Those of `holdfast worker`, and the backend."""
        parser.add_argument("--backend", default="default", help="Backend to run: a key of TASKS.  [default]")
        for option in _options():
            how = {"action": "store_true"} if option.is_flag else {"metavar": option.metavar or option.name.upper()}
            parser.add_argument(*option.opts, dest=option.name, help=_percents(option), default=None, **how)

    def handle(self, *_: Any, **given: Any) -> None:
        """Never returns."""
        if "DJANGO_SETTINGS_MODULE" not in os.environ:
            raise CommandError("set DJANGO_SETTINGS_MODULE: the processes of a worker have to find the settings")
        backend = _backend(given["backend"])
        arguments = [sys.executable, "-m", "holdfast", "worker", f"{_APP}:{backend.alias}", *_given(given)]
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONPATH": _path()})  # noqa: S606


def _backend(alias: str) -> HoldfastBackend:
    backend = task_backends[alias] if alias in task_backends.settings else None
    if not isinstance(backend, HoldfastBackend):
        known = [each for each in task_backends.settings if isinstance(task_backends[each], HoldfastBackend)]
        raise CommandError(f"TASKS has no {alias!r} that is a HoldfastBackend; it has {', '.join(known) or 'none'}")
    return backend


def _options() -> Iterator[click.Option]:
    for option in worker.params:
        if isinstance(option, click.Option):
            yield option


def _given(values: dict[str, Any]) -> Iterator[str]:
    for option in _options():
        value = values.get(option.name or "")
        if option.is_flag and value:
            yield option.opts[0]
        elif not option.is_flag and value is not None:
            yield f"{option.opts[0]}={value}"


def _path() -> str:
    """Where modules are found besides what is installed: the folder of the script, and what --pythonpath says."""
    standard = sysconfig.get_path("stdlib")
    return os.pathsep.join(entry for entry in takewhile(lambda entry: entry != standard, sys.path) if entry)


def _percents(option: click.Option) -> str:
    """The help as argparse takes it, with the default as click would show it."""
    shown = f"  [{option.default}]" if option.show_default and not option.is_flag else ""
    return f"{option.help}{shown}".replace("%", "%%")
