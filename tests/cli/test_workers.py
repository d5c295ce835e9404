"""`holdfast workers`: what is listed and shown, and who is meant."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.stores.contract import WorkerOrders
from tests.cli.conftest import CommandLine, is_one_line


def announce(cli: CommandLine, worker_id: str, **about: Any) -> None:
    cli.announce(worker_id=worker_id, **about)


def test_a_line_has_what_an_operator_asks_for_first(any_cli: CommandLine) -> None:
    announce(any_cli, "here:1-abc", memory_bytes=123 * 2**20, ended_last_minute=42)
    (row,) = any_cli.rows("workers", "ls")
    assert {name: row[name] for name in ("host", "pid", "version", "queues", "running", "concurrency")} == {
        "host": "here", "pid": "1", "version": "0", "queues": "default", "running": "0", "concurrency": "10",
    }  # fmt: skip
    assert (row["rate"], row["memory"]) == ("42/min", "123 MB")


def test_runs_that_began_since_the_last_heartbeat_count(any_cli: CommandLine) -> None:
    announce(any_cli, "worker-10")
    announce(any_cli, "worker-1", concurrency=2)
    any_cli.enqueue(3)
    any_cli.claim()
    assert {row["worker"]: row["running"] for row in any_cli.rows("workers", "ls")} == {
        "worker-1": "1",
        "worker-10": "0",
    }
    assert any_cli.json("workers", "show", "worker-1")["running"] == 1
    any_cli.claim(2)  # one of them ahead: there are two slots
    assert [each["running"] for each in any_cli.json("workers", "ls")] == [2, 0]


def test_show_lists_the_tasks_that_the_worker_runs_and_no_others(any_cli: CommandLine) -> None:
    announce(any_cli, "worker-1")
    announce(any_cli, "worker-10")
    any_cli.enqueue(3)
    claimed = any_cli.claim(2)  # by worker-1
    shown = any_cli.json("workers", "show", "worker-1")
    assert {task["task_id"] for task in shown["tasks"]} == {task.task_id for task in claimed}
    assert any_cli.json("workers", "show", "worker-10")["tasks"] == []
    text = any_cli.ok("workers", "show", "worker-1")
    assert all(task.task_id in text for task in claimed)


def test_a_worker_is_named_by_the_beginning_of_its_id(cli: CommandLine) -> None:
    for worker_id in ("here:1-abc", "here:2-def"):
        announce(cli, worker_id)
    assert cli.json("workers", "show", "here:2")["worker_id"] == "here:2-def"
    assert "2 workers begin with here:" in is_one_line(cli.run("workers", "show", "here:"), 1)
    assert "no worker there" in is_one_line(cli.run("workers", "show", "there"), 1)


def test_orders_are_left_for_the_living(any_cli: CommandLine) -> None:
    announce(any_cli, "here:1-abc")
    announce(any_cli, "gone:2-def", ttl_ms=1)
    assert "gone:2-def is gone" in is_one_line(any_cli.run("workers", "concurrency", "gone", "7"), 1)
    assert any_cli.json("workers", "concurrency", "--all", "7") == [{"worker_id": "here:1-abc", "concurrency": 7}]


@pytest.mark.parametrize("arguments", [("5",), ("--all", "here", "5"), ("here", "0"), ("here", "many")])
def test_wrong_orders_are_one_line(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    announce(cli, "here:1-abc")
    refused = cli.run("workers", "concurrency", *arguments)
    assert (refused.exit_code, refused.stdout) == (2, "")


def test_orders_of_one_kind_leave_the_others(any_cli: CommandLine) -> None:
    announce(any_cli, "here:1-abc")
    any_cli.ok("workers", "concurrency", "here", "7")
    assert any_cli.json("workers", "drain", "here") == [{"worker_id": "here:1-abc", "mode": "drain"}]
    record = any_cli.store(lambda store: store.workers())[0]
    assert any_cli.store(lambda store: store.announce(record, 60_000)) == WorkerOrders(concurrency=7, mode="drain")
    any_cli.ok("workers", "resume", "--all")
    assert any_cli.store(lambda store: store.announce(record, 60_000)) == WorkerOrders(concurrency=7)


def test_all_workers_are_stopped_only_when_meant(cli: CommandLine) -> None:
    announce(cli, "here:1-abc")
    assert "needs a confirmation" in is_one_line(cli.run("workers", "stop", "--all"), 2)
    assert "name the workers" in is_one_line(cli.run("workers", "drain"), 2)
    assert cli.ok("workers", "stop", "--all", "--yes").startswith("worker here:1-abc stops")
