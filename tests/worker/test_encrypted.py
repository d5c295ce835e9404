"""Some of the worker's tests with signing and encryption on; `make test-encrypted` runs all of them so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import ENCRYPTED, ROOT, environment

FILES = ("test_execute", "test_middleware", "test_once")  # of the child


@pytest.mark.parametrize("name", () if ENCRYPTED else FILES)
def test_they_pass_with_keys(name: str) -> None:
    tests = ("-q", "-p", "no:xdist", "-k", "not redis and not postgres", f"tests/worker/child/{name}.py")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *tests],
        env=environment(more={"HOLDFAST_TEST_ENCRYPTED": "1"}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
