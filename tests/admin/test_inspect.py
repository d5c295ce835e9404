"""What operators are shown of queues, workers and tokens."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast import Holdfast
from holdfast.admin import tokens
from holdfast.admin.inspect import queue_table, worker_table
from holdfast.admin.workers import running_tasks
from holdfast.core.task import Task
from holdfast.security.tokens import TokenText
from holdfast.stores.contract import Store
from tests.cli.conftest import CommandLine
from tests.support import eventually


def test_a_silent_worker_serves_no_queue(cli: CommandLine) -> None:
    cli.announce()
    assert [(row.queue, row.workers) for row in cli.store(queue_table)] == [("default", 1)]
    cli.announce(ttl_ms=1)
    eventually(lambda: not any(worker.alive for worker in cli.store(worker_table)))
    assert cli.store(queue_table) == []


def test_tasks_of_a_worker_with_a_longer_id_are_not_its_own(cli: CommandLine) -> None:
    cli.announce()
    cli.enqueue()
    cli.claim()

    async def look(store: Store) -> list[list[Task]]:
        (worker,) = await worker_table(store)
        shorter = replace(worker, worker_id=worker.worker_id[:-1])
        return [await running_tasks(store, each) for each in (worker, shorter)]

    own, others = cli.store(look)
    assert (len(own), others) == (1, [])


def test_there_is_no_first_token_where_there_is_another(cli: CommandLine) -> None:
    async def make(store: Store) -> TokenText | None:
        await tokens.create(store, ["read"], now_ms=1)
        return await tokens.create_first(store, now_ms=2)

    assert cli.store(make) is None


def test_an_app_does_not_show_the_password_of_its_url() -> None:
    assert "s3cret" not in repr(Holdfast("redis://joe:s3cret@localhost:1"))
