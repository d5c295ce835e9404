"""The backend for tests of Django projects, in a project that is tested by Django's own test runner."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import KEYS, ROOT, environment

if pytest.importorskip("django").VERSION < (6,):
    pytest.importorskip("django_tasks")


def test_a_project_is_tested_with_the_backend_for_tests(tmp_path: Path) -> None:
    run_tests("in_tests", "settings_in_tests", tmp_path, "redis://never.invalid:1/0", 13)


@pytest.mark.parametrize("keys", ["", KEYS], ids=["plain", "encrypted"])
def test_schedules_are_managed_in_djangos_admin(tmp_path: Path, keys: str) -> None:
    run_tests("administering", "settings_admin", tmp_path, f"sqlite:///{tmp_path}/tasks.db", 14, keys)


def run_tests(module: str, settings: str, tmp_path: Path, store: str, count: int, keys: str = "") -> None:
    more = {
        "DJANGO_SETTINGS_MODULE": f"tests.contrib.project.{settings}",
        "CASE_STORE": store,
        "HOLDFAST_KEYS": keys,
        "CASE_DATABASE": f"sqlite://{tmp_path}/django.db",
        "CASE_JOURNAL": str(tmp_path / "journal.txt"),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "django", "test", f"tests.contrib.project.{module}"],
        env=environment(more=more),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert f"Ran {count} tests" in ended.stderr
