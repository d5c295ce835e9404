"""The server that is fuzzed, and a look at what it leaves behind."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from chaos.snapshot import Snapshot, take_snapshot

from holdfast.core.task import FINAL_STATES, State, Task
from holdfast.stores.open import open_store
from tests.remote.holdfast_server import HoldfastServer
from tests.server.fuzz import server
from tests.server.setting import Client
from tests.servers.processes import ServerProcess
from tests.servers.urls import fresh_store
from tests.support import eventually

#: Long enough to be a wait, short enough for thousands of them.
_LONGEST_WAIT_MS: Final = 25


class FuzzedServer(HoldfastServer):
    """`holdfast server` on a store of its own, whose requests do not wait long."""

    def start(self) -> None:
        """Returns when it answers."""
        options = ["--port", str(self.port), "--url", self.store_url]
        command = [sys.executable, str(Path(server.__file__)), str(_LONGEST_WAIT_MS), *options]
        self._process = ServerProcess(command, self._log)
        eventually(self._answers, 30, "the server answers")

    def end(self) -> int | None:
        """Its exit code."""
        assert self._process is not None
        self._process.stop(timeout=30)
        return self._process.exit_code


@contextmanager
def fuzzed_server(store: str, directory: Path) -> Iterator[FuzzedServer]:
    """A server over a fresh store of this kind; nothing of it outlives the block."""
    server = FuzzedServer(directory, fresh_store(store, directory))
    try:
        server.start()
        yield server
    finally:
        server.kill()


def check_aftermath(server: FuzzedServer, token: str) -> int:
    """Fails if the server or its store has come to harm; gives the number of tasks that it has looked at."""
    client = Client(server.port, token)
    assert client.get("/v1/whoami")["scopes"] == ["admin"]
    client.close()
    assert server.end() == 0, server.log()[-5_000:]
    bad = [line for line in server.log().splitlines() if " ERROR " in line or line.startswith("Traceback")]
    assert not bad, "\n".join(bad[:20])
    snapshot = asyncio.run(_everything(server.store_url))
    for task in snapshot.tasks.values():
        _check_task(task)
    counted = Counter((task.queue, task.state) for task in snapshot.tasks.values())
    assert counted == snapshot.counts
    return len(snapshot.tasks)


async def _everything(url: str) -> Snapshot:
    store = open_store(url)
    try:
        return await take_snapshot(store, lambda _: None)
    finally:
        await store.close()


def _check_task(task: Task) -> None:
    """A claim belongs to somebody, an end has a time, and a task succeeds once, at last."""
    claimed = task.state is State.CLAIMED
    assert (task.finished_at_ms is not None) == (task.state in FINAL_STATES), task
    assert (task.worker_id is not None) == claimed, task
    assert (task.lease_expires_at_ms is not None) == claimed, task
    assert [run.delivery for run in task.history] == list(range(1, task.deliveries + 1 - claimed)), task
    outcomes = [run.outcome for run in task.history]
    assert outcomes.count("succeeded") == (task.state is State.SUCCEEDED), task
    assert "succeeded" not in outcomes[:-1], task
