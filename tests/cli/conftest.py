"""A command line on a database of its own, and ways to bring tasks into every state."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from click.testing import CliRunner, Result

from holdfast.cli.main import main
from holdfast.clock import SystemClock
from holdfast.core import lifecycle
from holdfast.core.declared import DeclaredType
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import IdSource
from holdfast.core.retry import RunPolicy
from holdfast.core.task import Claimed, Failure, Hold, NewTask, Progress
from holdfast.stores import documents
from holdfast.stores.contract import Reserve, Store, WorkerRecord
from holdfast.stores.open import open_store
from tests.servers.urls import STORES, fresh_store

T = TypeVar("T")
ONE_SHOT = RunPolicy(max_attempts=1)


class CommandLine:
    """`holdfast` with `--url`, and the store behind it."""

    def __init__(self, path: Path, url: str | None = None) -> None:
        self.path = path
        self.url = url or f"sqlite:///{path}"
        self._ids = IdSource(SystemClock().now_ms, os.urandom)

    def run(self, *arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, [*arguments, "--url", self.url], input=stdin)

    def ok(self, *arguments: str, stdin: str | bytes | None = None) -> str:
        result = self.run(*arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def rows(self, *arguments: str) -> list[dict[str, str]]:
        """A piped table as one dictionary a line."""
        header, *lines = self.ok(*arguments).splitlines()
        return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]

    def store(self, action: Callable[[Store], Awaitable[T]]) -> T:
        async def run() -> T:
            store = open_store(self.url)
            try:
                return await action(store)
            finally:
                await store.close()

        return asyncio.run(run())

    def enqueue(self, count: int = 1, **options: Any) -> list[str]:
        given = {"type": "add", "queue": "default", "payload": b'{"a":1}', **options}
        tasks = [NewTask(task_id=self._ids.task_id(), **given) for _ in range(count)]
        self.store(lambda store: store.enqueue(tasks))
        return [task.task_id for task in tasks]

    def claim(self, count: int = 1, lease_ms: int = 60_000, queue: str = "default") -> list[Claimed]:
        request = Reserve(
            claim_id=self._ids.claim_id(),
            worker_id="worker-1",
            shares=[QueueShare(queue, count)],
            max_tasks=count,
            lease_ms=lease_ms,
        )
        return self.store(lambda store: store.reserve(request)).tasks

    def tell(self, task: Claimed, progress: Progress) -> None:
        hold = Hold(task.task_id, task.token, msgspec.json.encode(progress))
        self.store(lambda store: store.extend([hold], 60_000))

    def settle(self, *changes: lifecycle.Change) -> None:
        verdicts = self.store(lambda store: store.apply(changes))
        assert all(verdict.applied for verdict in verdicts)

    def dead_letters(self, count: int = 1, error: Failure | None = None, **options: Any) -> list[str]:
        """Tasks that were claimed, failed once, and had no attempts left."""
        self.enqueue(count, policy=ONE_SHOT, **options)
        failure = error or Failure("builtins.ValueError", "bad luck", "Traceback: bad luck")
        claimed = self.claim(count, queue=options.get("queue", "default"))
        self.settle(*(failed(task, failure) for task in claimed))
        return [task.task_id for task in claimed]

    def announce(self, *, ttl_ms: int = 60_000, **about: Any) -> None:
        given = {"worker_id": "worker-1", "queues": ("default",), "types": ("add",), "concurrency": 10, **about}
        record = WorkerRecord(host="here", pid=1, version="0", processes=1, running=0, **given)
        self.store(lambda store: store.announce(record, ttl_ms))

    def publish(self, *types: DeclaredType) -> None:
        """What a worker says of its types besides its announcement."""
        self.store(lambda store: documents.publish_types(store, types))


class ShiftedClock(SystemClock):
    """The machine's clock, a while later."""

    def __init__(self, by_ms: int) -> None:
        self._by_ms = by_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._by_ms


def failed(task: Claimed, failure: Failure, *, retryable: bool = True) -> lifecycle.Change:
    return lifecycle.fail(
        task.task_id,
        task.token,
        failure,
        attempt=task.attempt,
        policy=task.policy,
        retryable=retryable,
        random_unit=0.0,
    )


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path / "tasks.db")


@pytest.fixture(params=STORES)
def any_cli(request: pytest.FixtureRequest, tmp_path: Path) -> CommandLine:
    """The same on each kind of store."""
    return CommandLine(tmp_path / "tasks.db", fresh_store(request.param, tmp_path))


def is_one_line(result: Result, exit_code: int) -> str:
    """The one line on stderr that a refused call leaves, and nothing else."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == exit_code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("holdfast: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr
