"""What a store behind a server is for those who use it: partitions, transactions, sync calls, the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.core.ids import partition_of
from holdfast.core.task import Enqueued, NewTask
from holdfast.errors import BadOption, BadUrl, NotAllowed, StoreFull, StoreUnavailable
from holdfast.server.server import ServerSettings
from holdfast.stores import documents
from holdfast.stores.contract import Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from tests.remote.calling import with_store
from tests.remote.holdfast_server import HoldfastServer, holdfast_server
from tests.remote.scripted import always, scripted
from tests.server.setting import running_server
from tests.support import free_port, run_holdfast


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HoldfastServer]:
    """A server before two SQLite files."""
    folder: Path = tmp_path_factory.mktemp("server")
    url = ",".join(f"sqlite:///{folder / name}" for name in ("a.db", "b.db"))
    with holdfast_server(folder, url) as server:
        yield server


def make_app(url: str) -> Holdfast:
    app = Holdfast(url)

    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    return app


def test_partitions_are_for_those_who_may_look_after_them(server: HoldfastServer) -> None:
    async def look() -> None:
        admin = open_store(server.url("admin"))
        parts = await admin.partitions()
        assert [part.url.rpartition("/")[2] for part in parts] == ["a.db", "b.db"]
        assert [list(await part.partitions()) for part in parts] == [[part] for part in parts]
        assert [await part.counts() for part in parts] == [[], []]
        assert [(await documents.partition_map(part)).partition for part in parts] == [0, 1]
        await admin.close()
        worker = open_store(server.url("work:*"))
        assert list(await worker.partitions()) == []
        await worker.close()

    asyncio.run(look())


def test_partitions_of_a_server_that_is_away_are_not_known() -> None:
    async def look() -> None:
        store = open_store(f"http://127.0.0.1:{free_port()}?deadline=100ms")
        with pytest.raises(StoreUnavailable, match="connection refused"):
            await store.partitions()
        await store.close()

    asyncio.run(look())


def test_a_single_store_behind_a_server_is_its_own_partition() -> None:
    async def look(port: int) -> None:
        store = open_store(f"http://127.0.0.1:{port}")
        assert list(await store.partitions()) == [store]
        assert list(await store.partitions()) == [store]
        await store.close()

    with scripted(always(b'["sqlite:///tasks.db"]')) as server:
        asyncio.run(look(server.port))
        assert len(server.requests) == 1


def test_sync_and_async_producers_spread_their_tasks(server: HoldfastServer) -> None:
    assert run_holdfast("queues", "spread", "wide", "2", url=server.url("admin")).returncode == 0
    with make_app(server.url("enqueue:*")) as app:
        wide = app.task_types["double"].using(queue="wide")
        one_by_one = [wide.enqueue(n).task_id for n in range(4)]
        together = [task.task_id for task in app.enqueue_many(wide.prepare(n) for n in range(4))]

        async def enqueue() -> list[str]:
            return [(await wide.aenqueue(n)).task_id for n in range(4)]

        for ids in (one_by_one, together, asyncio.run(enqueue())):
            assert {partition_of(task_id) for task_id in ids} == {0, 1}
        again = [wide.using(request_id="order-42").enqueue(1).task_id for _ in range(4)]
        assert len(set(again)) == 1


def test_a_transaction_of_the_caller_is_refused_in_one_line(server: HoldfastServer) -> None:
    with make_app(server.url("enqueue:*")) as app, pytest.raises(BadOption) as caught:
        app.task_types["double"].using(transaction=_Session()).enqueue(1)
    assert "cannot take part in your transactions" in str(caught.value)
    assert "hf_" not in str(caught.value)


class _Session:
    def commit(self) -> None: ...

    def rollback(self) -> None: ...


def test_what_a_token_may_not_is_refused_in_one_line(server: HoldfastServer) -> None:
    with (
        make_app(server.url("read")) as app,
        pytest.raises(NotAllowed, match="that needs the scope enqueue, and token"),
    ):
        app.task_types["double"].enqueue(1)


def test_a_token_for_one_queue_tells_why_and_lists_that_queue(server: HoldfastServer) -> None:
    with make_app(server.url("admin")) as app:
        app.task_types["double"].using(queue="elsewhere").enqueue(1)
    url = server.url("enqueue:own")
    with make_app(url) as app:
        handle = app.task_types["double"].using(queue="own").enqueue(1)
        assert handle.why() == "No worker is running for queue own."
    listed = run_holdfast("queues", "ls", "--json", url=url)
    assert [row["queue"] for row in json.loads(listed.stdout)] == ["own"]
    refused = run_holdfast("tasks", "ls", url=url)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert json.loads(run_holdfast("tasks", "ls", "--queue", "own", "--json", url=url).stdout)


def test_a_token_that_nobody_made_is_refused_in_one_line(server: HoldfastServer) -> None:
    url = f"http://hf_abcdef_CANARY@127.0.0.1:{server.port}"
    with make_app(url) as app, pytest.raises(BadUrl, match="refused this token") as caught:
        app.task_types["double"].enqueue(1)
    assert "CANARY" not in str(caught.value)


def test_the_command_line_works_through_a_server(server: HoldfastServer) -> None:
    url = server.url("admin")
    made = run_holdfast("enqueue", "double", "--args", '{"number": 4}', "--force", "--json", url=url)
    assert made.returncode == 0, made.stderr
    task_id = json.loads(made.stdout)["task_id"]
    for words in (
        ("tasks", "why", task_id),
        ("queues", "ls"),
        ("partitions", "ls"),
        ("migrate",),
        ("doctor",),
        ("tasks", "cancel", task_id),
    ):
        done = run_holdfast(*words, "--json", url=url)
        assert done.returncode in (0, 1), (words, done.stderr)
        assert "Traceback" not in done.stderr, (words, done.stderr)
        assert "hf_" not in done.stdout + done.stderr
    assert json.loads(run_holdfast("tasks", "show", task_id, "--json", url=url).stdout)["state"] == "cancelled"


def test_a_server_that_is_away_is_named_in_one_line() -> None:
    url = f"http://hf_id_CANARY@127.0.0.1:{free_port()}?deadline=200ms"
    done = run_holdfast("queues", "ls", url=url)
    assert done.returncode == 1
    assert "connection refused at 127.0.0.1:" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "CANARY" not in done.stdout + done.stderr


class _FullAfter(PassingStore):
    """Takes one call with tasks, and is full then."""

    calls = 0

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        self.calls += 1
        if self.calls > 1:
            raise StoreFull("no room for new tasks")
        return await super().enqueue(tasks, map_version=map_version)


def test_an_error_in_the_middle_of_a_batch_in_parts_says_what_is_recorded(tmp_path: Path) -> None:
    full = _FullAfter(open_store(f"sqlite:///{tmp_path}/tasks.db"))
    tasks = [
        NewTask(task_id=f"{number:032x}", type="t", queue="q", payload=json.dumps({"x": "y" * 250_000}).encode())
        for number in range(40)
    ]

    async def enqueue(store: Store) -> list[Enqueued]:
        return await store.enqueue(tasks)

    with running_server(lambda: full, settings=ServerSettings(maintenance=False)) as server:
        with pytest.raises(StoreFull, match="the first 20 of 40 tasks are recorded: send all of them again"):
            with_store(server.url, enqueue)
        full.calls = -10
        again = with_store(server.url, enqueue)
    assert [answer.created for answer in again] == [False] * 20 + [True] * 20
