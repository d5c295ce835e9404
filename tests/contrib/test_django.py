"""The backend for Django's tasks; settings hold for a whole process, so each group of cases has one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.postgres_shared import shared_postgres
from tests.support import KEYS, ROOT, environment

if pytest.importorskip("django").VERSION < (6,):
    pytest.importorskip("django_tasks")


def run_cases(name: str, directory: Path, store: str, database: str, **more: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "unittest", f"tests.contrib.project.{name}"],
        env=environment(
            more={
                "DJANGO_SETTINGS_MODULE": "tests.contrib.project.settings",
                "CASE_STORE": store,
                "CASE_DATABASE": database,
                "CASE_JOURNAL": str(directory / "journal.txt"),
                **more,
            }
        ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Ran 0 tests" not in ended.stderr


@pytest.mark.parametrize("keys", ["", KEYS], ids=["plain", "encrypted"])
def test_a_worker_runs_tasks_of_every_kind_and_nothing_else(tmp_path: Path, keys: str) -> None:
    """With keys too: repeats, results and errors are those of plain tasks."""
    database = f"sqlite://{tmp_path}/django.db"
    run_cases("running", tmp_path, f"sqlite:///{tmp_path}/tasks.db", database, HOLDFAST_KEYS=keys)


@pytest.mark.parametrize(("use_tz", "keys"), [("1", ""), ("0", ""), ("1", KEYS)], ids=["utc", "naive", "encrypted"])
def test_calls_are_recorded_as_django_and_the_options_say(tmp_path: Path, use_tz: str, keys: str) -> None:
    store, database = f"sqlite:///{tmp_path}/tasks.db", f"sqlite://{tmp_path}/django.db"
    run_cases("recording", tmp_path, store, database, CASE_USE_TZ=use_tz, HOLDFAST_KEYS=keys)


@pytest.mark.parametrize("keys", ["", KEYS], ids=["plain", "encrypted"])
def test_tasks_are_part_of_transactions_in_their_own_database(tmp_path: Path, keys: str) -> None:
    server = shared_postgres()
    name = server.make_database()
    try:
        run_cases("joining", tmp_path, server.url(name), server.url(name), HOLDFAST_KEYS=keys)
    finally:
        server.drop_database(name)


def test_tasks_are_enqueued_in_forked_processes_and_in_signal_handlers(tmp_path: Path) -> None:
    run_cases("forking", tmp_path, f"sqlite:///{tmp_path}/tasks.db", f"sqlite://{tmp_path}/django.db")
