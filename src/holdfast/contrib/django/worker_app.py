"""The apps of a Django project for `holdfast worker`: `holdfast.contrib.django.worker_app:ALIAS`.

DJANGO_SETTINGS_MODULE says which project; ALIAS is a key of its TASKS.
"""

from __future__ import annotations

import logging

import django

from holdfast.app import Holdfast
from holdfast.contrib.django.backend import HoldfastBackend
from holdfast.contrib.django.compat import task_backends
from holdfast.observe.logs import is_told


def _told_by_worker(record: logging.LogRecord) -> bool:
    return is_told(record) if str(record.msg).startswith("Task id=") else True


django.setup()
for _name in ("django.tasks", "django_tasks"):  # they log the start and the end of each run, and so does the worker
    logging.getLogger(_name).addFilter(_told_by_worker)


def __getattr__(alias: str) -> Holdfast:
    if alias not in task_backends.settings or not isinstance(task_backends[alias], HoldfastBackend):
        raise AttributeError(f"TASKS has no {alias!r} that is a HoldfastBackend")
    known = task_backends[alias].known
    known.discover()
    app: Holdfast = known.app
    app.declare_queues(*task_backends[alias].queues)
    return app
