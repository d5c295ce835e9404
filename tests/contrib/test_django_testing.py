"""The backend for tests of Django projects, in a project that is tested by Django's own test runner."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, environment

if pytest.importorskip("django").VERSION < (6,):
    pytest.importorskip("django_tasks")


def test_a_project_is_tested_with_the_backend_for_tests(tmp_path: Path) -> None:
    more = {
        "DJANGO_SETTINGS_MODULE": "tests.contrib.project.settings_in_tests",
        "CASE_STORE": "redis://never.invalid:1/0",
        "CASE_DATABASE": f"sqlite://{tmp_path}/django.db",
        "CASE_JOURNAL": str(tmp_path / "journal.txt"),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "django", "test", "tests.contrib.project.in_tests"],
        env=environment(more=more),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Ran 13 tests" in ended.stderr
