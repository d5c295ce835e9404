"""`holdfast celery check` finds what is refused, with its place, and imports nothing."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from holdfast.contrib.celery.check import check_project
from holdfast.contrib.celery.refusals import REFUSED_IMPORTS, SUPPORTED, NotSupported
from tests.support import run_holdfast

APP = "from celery import Celery\napp = Celery('proj')\n"


def project(folder: Path, source: str) -> Path:
    (folder / "proj").mkdir()
    (folder / "proj" / "__init__.py").touch()
    (folder / "proj" / "celery.py").write_text(APP)
    (folder / "proj" / "tasks.py").write_text(source)
    return folder


REFUSED = {
    "from celery import chain\nchain()": "chain(): workflows are not there yet",
    "from celery import group as many\nmany()": "group(): workflows are not there yet",
    "from celery.canvas import chord\nchord()": "chord(): workflows are not there yet",
    "@shared_task\ndef add(): ...\nadd.s(1) | add.s(2)": "a | b: workflows",
    "@shared_task\ndef add(): ...\nadd.chunks([], 3)": "add.chunks(): enqueue one task per chunk",
    "@shared_task(rate_limit='3/s')\ndef add(): ...": "task add: rate_limit: no rate limits",
    "@shared_task(pydantic=True)\ndef add(): ...": "task add: pydantic: pass model.model_dump",
    "@app.task(serializer='pickle')\ndef add(): ...": "task add: serializer: only JSON",
    "@app.task\nasync def add(): ...": "task add is an `async def`",
    "CELERY_TASK_SERIALIZER = 'pickle'": "CELERY_TASK_SERIALIZER: only JSON",
    "app.conf.accept_content = ['json', 'pickle']": "accept_content: only JSON",
    "app.conf.update(result_serializer='pickle')": "result_serializer: only JSON",
    "SETTINGS = {'CELERY_ACCEPT_CONTENT': ['application/x-python-serialize', 'pickle']}": "only JSON",
    "add.apply_async(link=done)": "add.apply_async: link: workflows",
    "add.apply_async(MessageGroupId='a')": "MessageGroupId: no message groups",
    "def f(self):\n    self.retry(args=[1])": "retry(args=…): a retry keeps its arguments",
    "def f(self):\n    self.replace(other)": "self.replace(): workflows",
    "from celery import bootsteps": "celery.bootsteps: no bootsteps",
    "from celery.worker.control import control_command": "no control commands",
    "app.control.broadcast('x')": "control.broadcast(): no control commands",
    "app.control.inspect().active()": "control.inspect(): no control commands",
    "from celery.signals import task_received": "celery.signals.task_received: no events",
    "from celery.schedules import solar": "celery.schedules.solar: no solar schedules",
    "from proj.celery import app\napp.backend.client": "app.backend: no result backend",
    "from .celery import app as celery\ncelery.connection()": "app.connection: there is no broker connection",
    "from celery import current_app\ncurrent_app.worker_main()": "app.worker_main: run `holdfast worker",
    "from celery import Celery\nown = Celery()\nown.amqp.queues": "app.amqp: there is no broker connection",
    "@shared_task\ndef add(): ...\nadd.rate_limit": "task.rate_limit: no rate limits",
    "@shared_task\ndef add(): ...\nadd.delay(1).then(print)": "result.then: no callbacks",
    "from celery.result import AsyncResult\nr = AsyncResult('1')\nr.collect()": "result.collect: workflows",
    "@shared_task\ndef add(): ...\nadd.s(1).freeze()": "signature.freeze: give apply_async a task_id",
    "from celery.nowhere import thing": "celery.nowhere.thing is not in holdfast.contrib.celery",
}


@pytest.mark.parametrize("source", REFUSED)
def test_what_is_refused_is_found_with_its_place(tmp_path: Path, source: str) -> None:
    findings = check_project("proj.celery:app", project(tmp_path, source))
    (found,) = findings.refused
    assert REFUSED[source] in found.text
    assert (found.path, found.line) == ("proj/tasks.py", _line(source))


def _line(source: str) -> int:
    """All but those with a declaration in front are on the last line; options are on the line of their value."""
    lines = source.splitlines()
    if "async def" in source:
        return 2
    return 1 if lines[0].startswith("@") and lines[-1].startswith("def") else len(lines)


WORKS = """
from celery import Task, shared_task
from celery.exceptions import SoftTimeLimitExceeded
from celery.schedules import crontab
from celery.signals import task_prerun
from celery.utils.log import get_task_logger

class Base(Task):
    def on_failure(self, *args): ...

@shared_task(bind=True, base=Base, autoretry_for=(OSError,), retry_backoff=True, rate_limit=None, queue="mail")
def add(self, x):
    raise self.retry(countdown=3)

add.delay(1)
add.apply_async((1,), countdown=3, queue="mail")
text = "a.s(1) chain()"
numbers.s(3)
CELERY_BEAT_SCHEDULE = {"a": {"task": "add", "schedule": crontab()}}
CELERY_TASK_SERIALIZER = "json"
"""


def test_a_project_without_anything_refused_succeeds_and_shows_what_works(tmp_path: Path) -> None:
    root = project(tmp_path, WORKS)
    (root / "proj" / "tasks.py").write_text(f"raise SystemExit\n{WORKS}")  # so that an import would show
    ended = run_holdfast("celery", "check", "proj.celery:app", cwd=root)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "3 files: 6 imports, 2 calls, 1 signal, 1 task, 1 self.retry, 1 beat schedule; 0 refused\n"


def test_the_exit_code_is_1_and_each_place_is_a_line(tmp_path: Path) -> None:
    root = project(tmp_path, "from celery import chain\n\nchain()\n")
    ended = run_holdfast("celery", "check", "proj.celery:app", cwd=root)
    assert ended.returncode == 1
    assert ended.stdout.startswith("proj/tasks.py:3: refused: chain(): workflows are not there yet")
    found = json.loads(run_holdfast("celery", "check", "proj.celery:app", "--json", cwd=root).stdout)["found"]
    assert [(each["path"], each["line"], each["verdict"]) for each in found] == [("proj/tasks.py", 3, "refused")]


@pytest.mark.parametrize("reference", ["proj.celry:app", "proj.celery:ap", ":app"])
def test_an_app_that_is_not_there_is_a_usage_error(tmp_path: Path, reference: str) -> None:
    ended = run_holdfast("celery", "check", reference, cwd=project(tmp_path, ""))
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "write it as proj.celery:app" in ended.stderr


def test_every_name_that_check_accepts_can_be_imported() -> None:
    for module, names in SUPPORTED.items():
        ours = importlib.import_module(f"holdfast.contrib.{module}")
        for name in names:
            if name not in vars(ours):
                importlib.import_module(f"{ours.__name__}.{name}")


@pytest.mark.parametrize("name", [name for name in REFUSED_IMPORTS if name.split(".")[-2] in {"signals", "schedules"}])
def test_a_name_that_is_refused_says_why_at_import(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    with pytest.raises(NotSupported, match=f"{name}: "):
        getattr(importlib.import_module(f"holdfast.contrib.{module}"), attribute)
