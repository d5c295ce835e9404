"""What the cases share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django

django.setup()


class Case(unittest.TestCase):
    """Has a store and a journal of its own process."""

    def work(self, backend: str = "default", *options: str) -> str:
        """Runs a real worker until nothing is left to do; gives its log lines."""
        command = ["holdfast_worker", "--backend", backend, "--burst", *(options or ("--log-level", "warning"))]
        ended = subprocess.run(
            [sys.executable, "-m", "django", *command], capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stderr

    @contextmanager
    def worker(self) -> Iterator[None]:
        """A real worker, for as long as the block runs."""
        command = [sys.executable, "-m", "django", "holdfast_worker", "--log-level", "warning", "--grace", "1s"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
            try:
                yield
            finally:
                running.terminate()

    def holdfast(self, *arguments: str) -> Any:
        """What `holdfast` prints with --json."""
        command = [sys.executable, "-m", "holdfast", *arguments, "--url", os.environ["CASE_STORE"], "--json"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def journal(self) -> list[str]:
        """The signals so far, in all processes; enqueued ones apart."""
        path = Path(os.environ["CASE_JOURNAL"])
        return path.read_text().splitlines() if path.exists() else []
