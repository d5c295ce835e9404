"""What the cases share."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from pathlib import Path

import django

django.setup()


class Case(unittest.TestCase):
    """Has a store and a journal of its own process."""

    def work(self, backend: str = "default", *options: str) -> None:
        """Runs a real worker until nothing is left to do."""
        command = ["holdfast_worker", "--backend", backend, "--burst", "--log-level", "warning", *options]
        ended = subprocess.run(
            [sys.executable, "-m", "django", *command], capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.returncode == 0, ended.stderr

    def journal(self) -> list[str]:
        """The signals so far, in all processes; enqueued ones apart."""
        path = Path(os.environ["CASE_JOURNAL"])
        return path.read_text().splitlines() if path.exists() else []
