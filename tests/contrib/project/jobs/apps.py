"""Keeps a journal of the signals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.apps import AppConfig

from holdfast.contrib.django.compat import task_enqueued, task_finished, task_started


def _note(event: str, task_result: Any) -> None:
    with Path(os.environ["CASE_JOURNAL"]).open("a") as journal:
        journal.write(f"{event} {task_result.task.name} {task_result.status} {task_result.attempts}\n")


def on_enqueued(task_result: Any, **_: Any) -> None:
    _note("enqueued", task_result)


def on_started(task_result: Any, **_: Any) -> None:
    _note("started", task_result)


def on_finished(task_result: Any, **_: Any) -> None:
    _note("finished", task_result)
    raise RuntimeError("a receiver that fails makes no task fail")


class JobsConfig(AppConfig):  # type: ignore[misc]
    name = "tests.contrib.project.jobs"

    def ready(self) -> None:
        task_enqueued.connect(on_enqueued)
        task_started.connect(on_started)
        task_finished.connect(on_finished)
