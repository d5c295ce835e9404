"""The demo's worker: the same `holdfast worker` that a user would start."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from holdfast.errors import HoldfastError

_APP = "holdfast.demo.tasks:app"
#: Longer than the worker's own grace period, so that it always ends by itself.
_STOP_SECONDS = 20.0


class WorkerFailed(HoldfastError):
    """The demo's worker ended without being asked to."""


class WorkerProcess:
    """A worker in a session of its own: Ctrl-C reaches the demo, and the demo stops the worker."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, url: str, queues: str, processes: int, log: Path) -> WorkerProcess:
        """Starts `holdfast worker` on the store, with its output in a file."""
        options = ["--queues", queues, "--processes", str(processes), "--grace", "3s"]
        with log.open("wb") as sink:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "holdfast.cli.main", "worker", _APP, *options),
                env={**os.environ, "HOLDFAST_URL": url, "HOLDFAST_KEYS": ""},  # its tasks are plain
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        return cls(process, log)

    async def watch(self) -> None:
        """Returns never; `WorkerFailed` when the worker ends."""
        code = await self._process.wait()
        raise WorkerFailed(f"the demo's worker ended with exit code {code}: {self._last_words()}")

    def hurry(self) -> None:
        """A signal to stop; the second one means at once."""
        if self._process.returncode is None:
            self._process.terminate()

    async def stop(self) -> int:
        """Stops the worker gracefully; its exit code."""
        self.hurry()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            self._process.kill()
            return await self._process.wait()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing") + f" (see {self._log})"
