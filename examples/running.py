"""Shared by the examples: a real worker for this file, for the length of a `with` block."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def temporary_url() -> str:
    """A store in a temporary folder; the worker, a process of its own, is told by the environment."""
    if "HOLDFAST_URL" not in os.environ:
        os.environ["HOLDFAST_URL"] = f"sqlite:///{tempfile.mkdtemp(prefix='holdfast-example-')}/example.db"
    return os.environ["HOLDFAST_URL"]


@contextmanager
def worker(file: str) -> Iterator[None]:
    """`holdfast worker MODULE:app` in the folder of this file; shut down gracefully at the end."""
    path = Path(file).resolve()
    process = subprocess.Popen([sys.executable, "-m", "holdfast", "worker", f"{path.stem}:app"], cwd=path.parent)
    try:
        yield
    finally:
        process.terminate()
        process.wait()
