"""What a newcomer does wrong in the first hour: each mistake gets one line that says what to do.

The numbers are those of the study in which the mistakes were made. None of them may be a bare TypeError, a hang or
silence. `ELSEWHERE` names the tests of those that need servers or workers of their own.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Retry
from holdfast.errors import HoldfastError
from tests.support import ROOT, environment, eventually, free_port, run_holdfast, run_worker

TASKS = """
from holdfast import Holdfast
app = Holdfast("sqlite:///tasks.db")

@app.task
def resize(url: str, width: int = 800) -> str:
    return url
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module of tasks."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "tasks.py").write_text(TASKS)
    (folder / "text.db").write_text("this is no database, but a text that is long enough to look like one" * 20)
    return folder


#: The number of the mistake, what is typed, and what the answer says.
COMMANDS = [
    (1, ["worker", "taks:app"], "there is no module 'taks' in {project}"),
    (2, ["worker", "tasks.py"], "write it as module:app"),
    (2, ["worker", "tasks:ap"], "module 'tasks' has no 'ap'; did you mean app?"),
    (2, ["worker"], "Missing argument 'MODULE:APP'"),
    (2, ["worker", "tasks:x"], "module 'tasks' has no 'x'; it has app"),
    (2, ["worker", "json:app"], "module 'json' has no 'app'; it has no Holdfast app"),
    (2, ["worker", "tasks:resize"], "'resize' is a TaskType, not a Holdfast app"),
    (12, ["tasks", "ls", "--url", "mysql://localhost/x"], "is not a store URL; write sqlite:///holdfast.db"),
    (18, ["tasks", "ls", "--url", "sqlite:///text.db"], "text.db is not a SQLite database; choose another file"),
    (18, ["tasks", "ls", "--url", "sqlite:/x.db"], "two slashes are missing after sqlite:"),
    (20, ["tasks", "ls", "--url", "sqlite:///nothing.db"], "there is no database at {project}/nothing.db"),
]


@pytest.mark.parametrize(("number", "arguments", "text"), COMMANDS)
def test_a_command_says_what_is_wrong_in_one_line(project: Path, number: int, arguments: list[str], text: str) -> None:
    done = run_holdfast(*arguments, cwd=project)
    assert done.returncode in {1, 2}, f"mistake {number}: {done.stdout}{done.stderr}"
    said = " ".join((done.stdout + done.stderr).split())
    assert text.format(project=project) in said, f"mistake {number}"
    assert "Traceback" not in said


#: The number of the mistake, the module, the options of the worker, and what its log says.
WORKERS = [
    (4, "empty:app", [], "WARNING", "declares no task types, so this worker runs no tasks: name the modules"),
    (5, "mail:app", [], "INFO", "queues: default, mail"),
    (6, "mail:app", ["--queues", "mial"], "WARNING", "no task type of mail:app uses queue mial; did you mean mail?"),
]


@pytest.mark.parametrize(("number", "app", "options", "level", "text"), WORKERS)
def test_a_worker_warns_of_what_it_cannot_run(
    project: Path, tmp_path: Path, number: int, app: str, options: list[str], level: str, text: str
) -> None:
    (project / "empty.py").write_text(TASKS.partition("@app.task")[0])
    (project / "mail.py").write_text(TASKS + '\n@app.task(queue="mail")\ndef send() -> None: ...\n')
    with run_worker(app, f"sqlite:///{tmp_path}/tasks.db", *options, cwd=project) as worker:
        line = eventually(lambda: next((each for each in worker.output().splitlines() if text in each), ""), 30)
        assert level in line, f"mistake {number}"


class Picture:
    """A class that JSON does not know."""


def resize(url: str, width: int = 800) -> str:
    return url


def loose(value):  # type: ignore[no-untyped-def]
    return value


Call = Callable[[Any, Any, Any], Any]
#: The number of the mistake, the call (with the app, a typed task and one without annotations), and what is raised.
CALLS: list[tuple[int, Call, str]] = [
    (7, lambda app, task, loose: task.enqueue(object()), r"^resize\(\): url: "),
    (8, lambda app, task, loose: loose.enqueue(b"abc"), r"^loose\(\): value: .*bytes"),
    (8, lambda app, task, loose: loose.enqueue({1, 2}), r"^loose\(\): value: .*set"),
    (8, lambda app, task, loose: loose.enqueue({1: 2}), r"^loose\(\): value.*key"),
    (8, lambda app, task, loose: loose.enqueue(datetime(2026, 1, 1)), r"^loose\(\): value: .*datetime"),  # noqa: DTZ001
    (9, lambda app, task, loose: app.task(name="shown")(shows), r"^shown\(\): .*picture"),
    (10, lambda app, task, loose: task.enqueue("a", widht=4), r"unknown argument 'widht'; it takes url, width=800"),
    (10, lambda app, task, loose: task.enqueue("a", width="big"), r"width: Expected `int`, got `str`"),
    (10, lambda app, task, loose: task.enqueue(), r"missing argument 'url'"),
    (11, lambda app, task, loose: app.task(name="resize")(resize), r"declared twice in this app: give one of them"),
    (12, lambda app, task, loose: Holdfast("amqp://x"), r"is not a store URL; write sqlite:///holdfast.db"),
    (12, lambda app, task, loose: Holdfast("redis:localhost"), r"two slashes are missing after redis:"),
    (
        21,
        lambda app, task, loose: task.enqueue("a").result(timeout="50ms"),
        r"within 50ms \(state: ready",
    ),
    (23, lambda app, task, loose: asyncio.run(_awaited(task)), r"write `await task.aenqueue\(\.\.\.\)`"),
    (25, lambda app, task, loose: task.delay("a"), r"has no attribute 'delay': write resize\.enqueue\("),
    (25, lambda app, task, loose: task.apply_async(("a",)), r"has no attribute 'apply_async': write resize\.enqueue\("),
    (25, lambda app, task, loose: task.send("a"), r"has no attribute 'send': write resize\.enqueue\("),
    (26, lambda app, task, loose: task.enqueue("a", delay="1h"), r"using: resize\.using\(delay='1h'\)\.enqueue\("),
    (27, lambda app, task, loose: task.using(countdown=5), r"no option 'countdown': write delay='10s'"),
    (27, lambda app, task, loose: app.task(max_retries=3), r"no option 'max_retries': write retry=Retry\(max_attempts"),
    (27, lambda app, task, loose: app.task(bind=True), r"no option 'bind': leave it out and write current\(\)"),
    (27, lambda app, task, loose: app.task(autoretry_for=()), r"no option 'autoretry_for': every exception is retried"),
    (28, lambda app, task, loose: task.using(retry=3), r"write retry=Retry\(max_attempts=3\)"),
    (29, lambda app, task, loose: task.using(run_at=datetime(2026, 1, 1)), r"has no time zone; add one"),  # noqa: DTZ001
    (29, lambda app, task, loose: task.using(delay=-5), r"delay: -5 is out of range"),
    (29, lambda app, task, loose: task.using(delay="5 minutes"), r"delay: '5 minutes' is not a duration; write"),
    (29, lambda app, task, loose: task.using(priority=1000), r"from -100 to 100"),
    (31, lambda app, task, loose: _repeated(task), r"use another request_id"),
    (32, lambda app, task, loose: task.enqueue("x" * 300_000), r"bytes of JSON, the limit is 262,144"),
    (33, lambda app, task, loose: app.cron("61 3 * * *")(resize), r"minute"),
    (33, lambda app, task, loose: app.cron("0 3 * * *", timezone="Europe/Munich"), r"Europe/Munich"),
    (33, lambda app, task, loose: app.cron("0 3 * * *", name="x")(resize), r"missing argument 'url'.*a schedule needs"),
]


def shows(picture: Picture) -> None: ...


async def _awaited(task: Any) -> None:
    await task.enqueue("a")


def _repeated(task: Any) -> None:
    task.using(request_id="order-42").enqueue("a")
    task.using(request_id="order-42").enqueue("b")


@pytest.mark.parametrize(("number", "call", "text"), CALLS, ids=[f"{number}-{text[:30]}" for number, _, text in CALLS])
def test_a_call_says_what_is_wrong_in_one_line(number: int, call: Call, text: str) -> None:
    with Holdfast("sqlite://", retry=Retry(max_attempts=2)) as app:
        task, other = app.task(name="resize")(resize), app.task(name="loose")(loose)
        with pytest.raises((HoldfastError, AttributeError)) as caught:
            call(app, task, other)
    said = str(caught.value)
    assert re.search(text, said), f"mistake {number}: {said}"
    assert "\n" not in said


def test_a_server_that_does_not_answer_is_named_with_the_fix() -> None:
    """Mistake 14: Redis is down."""
    port = free_port()
    with Holdfast(f"redis://127.0.0.1:{port}/0?deadline=200ms") as app:
        task = app.task(name="resize")(resize)
        with pytest.raises(HoldfastError, match=rf"connection refused at .*{port}.*: start Redis or fix the host"):
            task.enqueue("a")


#: Mistake 13, a package that is not installed: its name, what needs it, and what the last line says.
MISSING = [
    ("redis", "Holdfast('redis://localhost').store", "redis:// needs the redis package; run: pip install redis"),
    ("psycopg", "Holdfast('postgresql://h/d').store", "postgresql:// needs the psycopg package; run: pip install"),
    ("starlette", "import holdfast.contrib.fastapi", "needs the package starlette; run: pip install starlette"),
    (
        "fastapi",
        "from holdfast.contrib.fastapi import TaskRouter",
        "needs the package fastapi; run: pip install fastapi",
    ),
    ("sentry_sdk", "import holdfast.contrib.sentry", "needs the package sentry_sdk; run: pip install sentry-sdk"),
    ("uvicorn", "main(['server'])", "uvicorn is missing; run: pip install starlette uvicorn"),
    (
        "redis",
        "main(['celery', 'drain', 'redis://h', '--app', 'a:b'])",
        "needs the redis package; run: pip install redis",
    ),
]


@pytest.mark.parametrize(("package", "code", "text"), MISSING)
def test_a_missing_package_is_named_with_the_command_that_installs_it(package: str, code: str, text: str) -> None:
    without = f"import sys; sys.modules[{package!r}] = None"
    program = f"{without}\nfrom holdfast import Holdfast\nfrom holdfast.cli.main import main\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert text in done.stderr.splitlines()[-1]
    assert "main(" not in code or "Traceback" not in done.stderr


#: Mistakes that need a server, a worker or a clock of their own, and the tests that make them.
ELSEWHERE = {
    15: "worker/test_start.py::test_a_worker_that_starts_before_its_store_waits_for_it",
    16: "redis/link/test_failures.py::test_wrong_password",
    17: "sqlite/test_opening.py::test_a_lock_that_another_program_holds_for_long_is_warned_of",
    19: "sqlite/test_opening.py::test_the_full_path_is_found_once",
    34: "worker/test_task_log.py::test_a_task_that_blocks_the_event_loop_is_named_and_others_are_not",
    35: "worker/child/test_execute.py::"
    "test_arguments_that_do_not_fit_are_retried_as_another_worker_may_have_their_signature",
    37: "worker/test_task_log.py::test_a_parent_that_waits_for_a_child_in_the_last_slot_is_named",
}
#: They work as written, or Python itself warns.
NO_MISTAKES = {3, 22, 24, 30, 36}


def test_every_mistake_has_its_place() -> None:
    here = {row[0] for row in COMMANDS} | {row[0] for row in WORKERS} | {row[0] for row in CALLS} | {13, 14}
    assert sorted([*here, *ELSEWHERE, *NO_MISTAKES]) == list(range(1, 38))
    for place in ELSEWHERE.values():
        path, _, test = place.partition("::")
        assert f"def {test}(" in (ROOT / "tests" / path).read_text("utf-8"), place
