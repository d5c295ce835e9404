"""One of three Redis servers is away: what lies in the other two goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Holdfast, TaskHandle
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import partition_of
from holdfast.core.task import State
from holdfast.errors import BadUrl, StoreUnavailable
from holdfast.maintenance.balance import Balance
from holdfast.stores import documents
from holdfast.stores.capabilities import NO_CAPABILITIES, in_part
from holdfast.stores.contract import DocumentPage, Page, Query, Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from holdfast.stores.sharded.store import ShardedStore
from holdfast.testing.kit.faulty import Faults, FaultyStore
from holdfast.testing.kit.kit import Kit
from tests.servers.redis_server import RedisServer
from tests.sharded.harness import ShardedSqliteHarness, url_of
from tests.support import eventually, run_holdfast
from tests.worker.apps.jobs import make_app
from tests.worker.helpers import in_state, outcomes, working

#: Three queues that lie in partition 0, 1 and 2.
QUEUES = ("a", "g", "b")


class Servers:
    """Three servers, and the URL of the store that they make."""

    def __init__(self, stack: ExitStack) -> None:
        self.servers = [stack.enter_context(RedisServer()) for _ in QUEUES]
        self.url = ",".join(f"{server.url}?deadline=500ms" for server in self.servers)


@pytest.fixture
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


def _enqueue_each(jobs: Holdfast, name: str, *args: object) -> list[TaskHandle[object]]:
    """One task in each partition."""
    handles = [jobs.task_types[name].using(queue=queue).enqueue(*args) for queue in QUEUES]
    assert [partition_of(handle.task_id) for handle in handles] == [0, 1, 2]
    return handles


@pytest.mark.parametrize("away", [0, 1])
def test_running_tasks_of_the_other_partitions_are_not_stopped(servers: Servers, away: int, tmp_path: Path) -> None:
    end = tmp_path / "end"
    with make_app(servers.url) as jobs:
        handles = _enqueue_each(jobs, "waits_for_file", str(end))
        with working(servers.url, "--queues", ",".join(QUEUES), "--lease", "2s", "--concurrency", "3") as worker:
            for handle in handles:
                in_state(handle, State.CLAIMED)
            lost, *healthy = handles[away], *(handle for n, handle in enumerate(handles) if n != away)
            servers.servers[away].kill()
            eventually(lambda: f"task {lost.task_id}: its lease expired" in worker.output(), 20)
            # Renewed twice after the other one was given up: by then, all of them would have been.
            for _ in range(2):
                before = [handle.status().record.lease_expires_at_ms for handle in healthy]
                for handle, lease in zip(healthy, before, strict=True):
                    eventually(lambda h=handle, old=lease: h.status().record.lease_expires_at_ms > old, 20)  # type: ignore[misc]
            assert worker.output().count("its lease expired") == 1
            servers.servers[away].heal()
            end.touch()
            for handle in healthy:
                in_state(handle, State.SUCCEEDED)
                assert outcomes(handle) == ["succeeded"]


def test_the_other_partitions_are_looked_after_while_the_list_of_workers_is_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = FaultyStore(open_store(url_of(tmp_path)), Faults(lost_calls=1.0))
        balance = Balance(store, 3, lambda: 0.5)
        try:
            for partition in range(3):
                await balance.give_way(partition)
            assert not await balance.gives_away(1)
        finally:
            await store.inner.close()

    asyncio.run(scenario())


def test_a_reserve_that_fails_in_one_partition_hands_back_what_it_claimed_in_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        harness = ShardedSqliteHarness(tmp_path)
        plain = Kit(harness, await harness.open())
        await plain.begin()
        ids = [task_id for queue in QUEUES for task_id in await plain.enqueue(2, queue=queue)]
        parts: list[Store] = list(await plain.store.partitions())
        parts[1] = away = FaultyStore(parts[1], Faults(lost_calls=1.0))
        away.strike(False)
        sharded = ShardedStore(parts)
        await documents.partition_map(sharded)
        away.strike(True)
        shares = [QueueShare(queue, 2) for queue in QUEUES]
        request = replace(plain.request(6), shares=shares, fresh=True)
        with pytest.raises(StoreUnavailable):
            await sharded.reserve(request)
        records = [await plain.record(task_id) for task_id in ids]
        assert {task.state for task in records} == {State.READY}
        assert {task.attempt for task in records} == {0}
        away.strike(False)
        found = await sharded.reserve(replace(request, fresh=False))
        assert sorted(task.task_id for task in found.tasks) == sorted(ids)
        assert {task.attempt for task in found.tasks} == {1}
        await plain.close()

    asyncio.run(scenario())


def test_two_names_of_one_database_are_refused_at_the_first_call(tmp_path: Path) -> None:
    async def first_call(url: str) -> None:
        store = open_store(url)
        try:
            await store.counts()
        finally:
            await store.close()

    (tmp_path / "link.db").symlink_to(tmp_path / "one.db")
    url = f"sqlite:///{tmp_path}/one.db,sqlite:///{tmp_path}/link.db"
    for _ in range(2):
        with pytest.raises(BadUrl, match=r"one\.db|link\.db"):
            asyncio.run(first_call(url))


def test_commands_show_the_partitions_that_answer_and_name_the_others(servers: Servers) -> None:
    with make_app(servers.url) as jobs:
        _enqueue_each(jobs, "add", 1, 2)
        servers.servers[1].kill()
        for words, shown in (
            (("queues", "ls", "--json"), ['"a"', '"b"']),
            (("tasks", "ls", "--json"), ['"a"', '"b"']),
            (("tasks", "cancel", "--all", "--yes"), ["2"]),
            (("queues", "pause", "a"), []),
        ):
            done = run_holdfast(*words, url=servers.url.replace("500ms", "3s"))
            assert done.returncode == 1, done
            (warning,) = done.stderr.splitlines()
            assert warning.startswith("holdfast: partition 1 is left out: ")
            assert "connection refused" in warning
            assert all(text in done.stdout for text in shown), done
        servers.servers[1].heal()
        done = run_holdfast("queues", "ls", url=servers.url)
        assert (done.returncode, done.stderr) == (0, "")


def test_all_partitions_away_is_an_error(servers: Servers) -> None:
    for server in servers.servers:
        server.kill()
    done = run_holdfast("queues", "ls", url=servers.url)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "left out" not in line


def test_a_new_producer_does_not_wait_for_a_partition_that_it_does_not_need(servers: Servers) -> None:
    async def scenario() -> None:
        urls = servers.url.split(",")
        store = open_store(",".join([urls[0], urls[1].replace("500ms", "10m"), urls[2]]))
        try:
            place = await store.placement()  # would otherwise be waited for as long as the deadline of partition 1
            assert place("a", None) == 0
        finally:
            # Not by `close`, which lets the look at partition 1 finish.
            for partition in (0, 2):
                await (await store.partitions())[partition].close()

    with make_app(servers.url) as jobs:
        _enqueue_each(jobs, "add", 1, 2)
    servers.servers[1].freeze()
    try:
        asyncio.run(scenario())
    finally:
        servers.servers[1].thaw()


def test_a_slow_partition_in_a_wrong_place_is_refused_when_it_answers(tmp_path: Path) -> None:
    class Slow(PassingStore):
        answering = asyncio.Event()

        async def documents(self, kind: str, **filters: Any) -> DocumentPage:
            if kind == documents.MAP:
                await self.answering.wait()
            return await self.inner.documents(kind, **filters)

    async def scenario() -> None:
        plain = open_store(url_of(tmp_path))
        await documents.partition_map(plain)
        first, second, third = await plain.partitions()
        slow = [Slow(third), Slow(second)]
        misplaced = ShardedStore([first, *slow])
        await misplaced.placement()
        Slow.answering.set()
        while misplaced._router._looking:  # noqa: ASYNC110
            await asyncio.sleep(0)
        with pytest.raises(BadUrl, match="list the partitions in the order"):
            await misplaced.counts()
        await plain.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("away", [0, 1])
def test_a_worker_stops_soon_after_its_grace(servers: Servers, away: int) -> None:
    """Calls that fail one after the other, each at its own deadline of a minute, would take far longer."""
    url = servers.url.replace("500ms", "60s")
    with make_app(servers.url) as jobs:
        handles = _enqueue_each(jobs, "sleeps", 3600)
        with working(url, "--queues", ",".join(QUEUES), "--grace", "100ms", "--lease", "60s") as worker:
            for handle in handles:
                in_state(handle, State.CLAIMED)
            servers.servers[away].kill()
            assert worker.stop(timeout=30) == 0
            healthy = [handle for n, handle in enumerate(handles) if n != away]
            assert {handle.status().state for handle in healthy} == {State.READY}


def test_a_view_in_part_answers_whole_or_not_at_all_where_its_answer_may_be_a_step_of_a_decision(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        harness = ShardedSqliteHarness(tmp_path)
        plain = Kit(harness, await harness.open())
        await plain.begin()
        for queue in QUEUES:
            await plain.enqueue(queue=queue)
        parts: list[Store] = list(await plain.store.partitions())
        parts[1] = away = FaultyStore(parts[1], Faults(lost_calls=1.0))
        away.strike(False)
        sharded = ShardedStore(parts)
        await documents.partition_map(sharded)
        away.strike(True)
        view, left_out = in_part(sharded)
        assert view.capabilities == NO_CAPABILITIES
        assert {counts.queue for counts in await view.counts()} == {"a", "b"}
        assert {task.queue for task in (await view.find(Query())).tasks} == {"a", "b"}
        assert (await view.documents(documents.SCHEDULE)).documents == []
        assert left_out.keys() == {1}
        for call in (
            view.expired,
            lambda: view.documents(documents.SCHEDULE, due_within_ms=1_000),
            lambda: view.documents(documents.SCHEDULE, names=["nightly"]),
            lambda: view.enqueue([plain.new_task(queue="g")]),
            lambda: view.reserve(plain.request(1, queues=["g"])),
            sharded.counts,
            lambda: sharded.find(Query()),
        ):
            with pytest.raises(StoreUnavailable):
                await call()
        await plain.close()

    asyncio.run(scenario())


def test_a_partition_that_is_only_slow_is_waited_for(tmp_path: Path) -> None:
    class Slow(PassingStore):
        async def find(self, query: Query) -> Page:
            await asyncio.sleep(1.5)  # longer than a partition that answers nothing is waited for
            return await super().find(query)

    async def scenario() -> None:
        harness = ShardedSqliteHarness(tmp_path)
        plain = Kit(harness, await harness.open())
        await plain.begin()
        for queue in QUEUES:
            await plain.enqueue(queue=queue)
        parts: list[Store] = list(await plain.store.partitions())
        parts[1] = Slow(parts[1])
        view, left_out = in_part(ShardedStore(parts))
        assert len((await view.find(Query())).tasks) == 3
        assert left_out == {}
        await plain.close()

    asyncio.run(scenario())


def test_a_cursor_takes_in_a_partition_that_is_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        harness = ShardedSqliteHarness(tmp_path)
        plain = Kit(harness, await harness.open())
        await plain.begin()
        for queue in QUEUES:
            await plain.enqueue(2, queue=queue)
        parts: list[Store] = list(await plain.store.partitions())
        parts[1] = away = FaultyStore(parts[1], Faults(lost_calls=1.0))
        away.strike(False)
        sharded = ShardedStore(parts)
        await documents.partition_map(sharded)
        away.strike(True)
        view, left_out = in_part(sharded, until_deadline=True)
        first = await view.find(Query(limit=1))
        assert left_out.keys() == {1}
        away.strike(False)
        view, left_out = in_part(sharded, until_deadline=True)
        rest = await view.find(Query(cursor=first.cursor))
        assert sorted(task.queue for task in [*first.tasks, *rest.tasks]) == ["a", "a", "b", "b", "g", "g"]
        assert (rest.cursor, left_out) == (None, {})
        await plain.close()

    asyncio.run(scenario())
