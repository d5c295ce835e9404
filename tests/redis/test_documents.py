"""Documents as keys of the server: what each leaves there, and what a full server and missing replicas mean."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from holdfast.clock import SystemClock
from holdfast.core.partitions import PartitionMap
from holdfast.errors import BadOption, DurabilityUnknown
from holdfast.stores import documents
from holdfast.stores.contract import MAX_PAGE_BYTES, DocumentWrite, Retention, WorkerOrders, WorkerRecord
from holdfast.stores.open import open_store
from holdfast.testing.kit.kit import Kit
from tests.redis.test_memory_pressure import Harness
from tests.servers.redis_server import RedisServer


def run(server: RedisServer, scenario: Callable[[Kit], Awaitable[None]]) -> None:
    async def whole() -> None:
        harness = Harness(server.url)
        kit = Kit(harness, await harness.open())
        try:
            await scenario(kit)
        finally:
            await kit.close()

    asyncio.run(whole())


def keys_of_documents(server: RedisServer) -> set[str]:
    """The keys that documents have left, without the hash of the last server and the leader."""
    kept = {key.removeprefix("{hf:0}/") for key in server.command("KEYS", "*")}
    return {key for key in kept if key != "server" and not key.startswith(("leader/", "wakeup/"))}


@pytest.fixture
def roomless(any_server: RedisServer) -> Iterator[RedisServer]:
    """Full as soon as `maxmemory` is set to 1."""
    yield any_server
    any_server.command("CONFIG", "SET", "maxmemory", 0)


@pytest.mark.parametrize("kind", ["schedule", "queue", "map", "memo", "orders", "token"])
def test_a_document_that_is_removed_leaves_no_key(redis_server: RedisServer, kind: str) -> None:
    async def scenario(kit: Kit) -> None:
        value = b'{"paused":true,"step_ms":5}'
        await kit.store.put(DocumentWrite(kind=kind, name="a/b", value=value, due_at_ms=5, ttl_ms=1_000))
        assert keys_of_documents(redis_server) >= {f"document/{kind}/a/b", f"names/{kind}", f"due/{kind}", "expires"}
        await kit.store.put(DocumentWrite(kind=kind, name="a/b", value=None, expected=1))
        assert keys_of_documents(redis_server) == set()

    run(redis_server, scenario)


def test_expired_documents_are_pruned_with_all_their_keys(redis_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        for name in ("a", "b/c", ""):
            await kit.store.put(DocumentWrite(kind="memo", name=name, value=b"1", ttl_ms=1_000))
        await kit.store.put(DocumentWrite(kind="queue", name="q", value=b'{"paused":true}', ttl_ms=1_000))
        kit.clock.advance(1_000)
        epoch = (await kit.store.lead("maintenance", "w", 60_000)).epoch
        assert await kit.store.prune(epoch, Retention()) == 4
        assert keys_of_documents(redis_server) == set()

    run(redis_server, scenario)


def test_settings_of_a_queue_are_where_reserve_reads_them(redis_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        await documents.pause(kit.store, "q", True)
        await documents.set_step(kit.store, "q", 7)
        assert redis_server.command("SMEMBERS", "{hf:0}/paused") == ["q"]
        assert redis_server.command("HGETALL", "{hf:0}/steps") == ["q", "7"]
        assert not await kit.store.wait(["q"], 1)
        await documents.pause(kit.store, "q", False)
        assert await kit.store.wait(["q"], 1_000)
        assert redis_server.command("EXISTS", "{hf:0}/paused") == 0
        await documents.set_step(kit.store, "q", documents.QueueSettings().step_ms)
        assert keys_of_documents(redis_server) == set()

    run(redis_server, scenario)


def test_settings_that_are_no_json_are_refused_before_anything_is_written(redis_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        with pytest.raises(Exception, match="put"):
            await kit.store.put(DocumentWrite(kind="queue", name="q", value=b"no json"))
        assert keys_of_documents(redis_server) == set()

    run(redis_server, scenario)


def test_a_full_server_takes_documents_without_tasks(roomless: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        roomless.command("CONFIG", "SET", "maxmemory", 1)
        await documents.pause(kit.store, "q", True)
        await documents.put_partition_map(kit.store, PartitionMap(version=1))
        await documents.order(kit.store, "w", WorkerOrders(concurrency=1))
        assert await documents.put(kit.store, "token", "a", b"1", 0)
        assert (await documents.keep(kit.store, "key", b"1", 1_000, None)).value == b"1"
        assert await documents.put(kit.store, "token", "a", None, 1)
        assert roomless.command("GET", "{hf:0}/map") == "1"

    run(roomless, scenario)


def test_orders_without_a_worker_are_pruned(redis_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        worker = WorkerRecord(
            worker_id="here",
            host="h",
            pid=1,
            version="1",
            queues=("q",),
            types=(),
            processes=1,
            concurrency=1,
            running=0,
        )
        await kit.store.announce(worker, 1_000)
        for worker_id in ("here", "gone"):
            await documents.order(kit.store, worker_id, WorkerOrders(concurrency=2))
        epoch = (await kit.store.lead("maintenance", "w", 60_000)).epoch
        await kit.store.prune(epoch, Retention())
        assert [each.name for each in (await kit.store.documents("orders")).documents] == ["here"]
        assert await kit.store.announce(worker, 1_000) == WorkerOrders(concurrency=2)

    run(redis_server, scenario)


def test_operators_do_not_wait_for_replicas(redis_server: RedisServer) -> None:
    """The server has none: a call that waits for one fails."""

    async def scenario() -> None:
        store = open_store(f"{redis_server.url}?durability=replicated&deadline=100ms&wait_ms=20", clock=SystemClock())
        await documents.pause(store, "q", True)
        await documents.order(store, "w", WorkerOrders(concurrency=1))
        with pytest.raises(DurabilityUnknown, match="token 'a'"):
            await documents.put(store, "token", "a", b"1", 0)
        await store.close()

    asyncio.run(scenario())


def test_pages_end_at_their_bytes(redis_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        large = b"." * (MAX_PAGE_BYTES // 2 - 100)
        for name in "abcde":
            await kit.store.put(DocumentWrite(kind="memo", name=name, value=large))
        page = await kit.store.documents("memo")
        assert ([each.name for each in page.documents], page.cursor) == (["a", "b"], "b")
        named = await kit.store.documents("memo", names=["e", "c", "a", "x"])
        assert ([each.name for each in named.documents], named.cursor) == (["a", "c"], "c")
        rest = await kit.store.documents("memo", names=["e", "c", "a", "x"], cursor=named.cursor)
        assert ([each.name for each in rest.documents], rest.cursor) == (["e"], None)

    run(redis_server, scenario)


def test_expired_documents_are_passed_over(redis_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        for number in range(6):
            ttl_ms = 10 if number < 5 else None
            write = DocumentWrite(kind="memo", name=str(number), value=b"1", due_at_ms=number, ttl_ms=ttl_ms)
            await kit.store.put(write)
        kit.clock.advance(10)
        assert [each.name for each in (await kit.store.documents("memo", limit=2)).documents] == ["5"]
        assert [each.name for each in (await kit.store.documents("memo", due_within_ms=0, limit=2)).documents] == ["5"]

    run(redis_server, scenario)


def test_a_made_up_cursor_of_discarded_tasks_is_refused(redis_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        with pytest.raises(BadOption, match="invalid cursor"):
            await kit.store.documents("discard", cursor="x")

    run(redis_server, scenario)
