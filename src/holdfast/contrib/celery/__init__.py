"""Celery's API on Holdfast: change `celery` to `holdfast.contrib.celery` in the imports, and set `holdfast_url`."""

from __future__ import annotations

from typing import Any

from holdfast.contrib.celery import states
from holdfast.contrib.celery.app import Celery, current_app, current_task, shared_task
from holdfast.contrib.celery.app.task import Task
from holdfast.contrib.celery.canvas import Signature, chain, chord, chunks, group, maybe_signature, signature, subtask
from holdfast.contrib.celery.refusals import missing
from holdfast.contrib.celery.result import AsyncResult
from holdfast.contrib.celery.schedules import crontab
from holdfast.contrib.celery.utils import uuid
from holdfast.contrib.celery.utils.log import get_task_logger

__all__ = [
    "AsyncResult",
    "Celery",
    "Signature",
    "Task",
    "chain",
    "chord",
    "chunks",
    "crontab",
    "current_app",
    "current_task",
    "get_task_logger",
    "group",
    "maybe_signature",
    "shared_task",
    "signature",
    "states",
    "subtask",
    "uuid",
]


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
