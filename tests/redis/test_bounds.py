"""No call without a bound: searches, claims, wake-ups nobody takes, records of discarded tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from holdfast.admin.search import search
from holdfast.core import lifecycle
from holdfast.core.task import State
from holdfast.stores.contract import Query, Retention
from holdfast.stores.documents import discards
from holdfast.stores.redis.scripts import DISCARDS_LIMIT, FIND_TASKS
from holdfast.testing.kit.kit import Kit, ack
from tests.redis.test_memory_pressure import Harness
from tests.servers.redis_server import RedisServer

KILOBYTE = b'{"x":"%s"}' % (b"." * 992)


def with_kit(server: RedisServer, scenario: Callable[[Kit], Awaitable[None]]) -> None:
    async def run() -> None:
        harness = Harness(server.url)
        kit = Kit(harness, await harness.open())
        await kit.begin()
        try:
            await scenario(kit)
        finally:
            await kit.close()

    asyncio.run(run())


def script_calls(server: RedisServer) -> int:
    found = server.info("commandstats")["cmdstat_evalsha"]
    return int(found.split(",")[0].removeprefix("calls="))


def test_a_search_that_finds_nothing_ends_its_page(any_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        [wanted] = await kit.enqueue(type="kit.rare")
        for _ in range(12):
            await kit.enqueue(1_000)
        query = Query(type="kit.rare", limit=10)
        await kit.store.find(query)
        any_server.command("CONFIG", "RESETSTAT")
        page = await kit.store.find(query)
        assert (page.tasks, page.cursor is None) == ([], False)
        assert script_calls(any_server) <= 10_000 / FIND_TASKS
        rest = await kit.store.find(replace(query, cursor=page.cursor))
        assert ([task.task_id for task in rest.tasks], rest.cursor) == ([wanted], None)
        # An operator gets the page filled.
        whole = await search(kit.store, query)
        assert ([task.task_id for task in whole.tasks], whole.cursor) == ([wanted], None)

    with_kit(any_server, scenario)


def test_dead_letters_are_found_behind_many_other_tasks(any_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        dead = [await kit.dead_letter() for _ in range(3)]
        [cancelled] = await kit.enqueue()
        await kit.apply(lifecycle.cancel(cancelled))
        running = (await kit.claim()).task_id
        for _ in range(3):
            await kit.enqueue(1_000)
        any_server.command("CONFIG", "RESETSTAT")
        wanted = frozenset({State.DEAD_LETTERED, State.CANCELLED, State.CLAIMED})
        found: list[str] = []
        cursor = None
        while True:
            page = await kit.store.find(Query(states=wanted, limit=2, cursor=cursor))
            found += [task.task_id for task in page.tasks]
            if (cursor := page.cursor) is None:
                break
        assert found == [running, cancelled, *reversed(dead)]
        # One search and one look at its tasks a page.
        assert script_calls(any_server) <= 6
        await kit.apply(lifecycle.replay(dead[1]))
        page = await kit.store.find(Query(states=frozenset({State.DEAD_LETTERED})))
        assert [task.task_id for task in page.tasks] == [dead[2], dead[0]]

    with_kit(any_server, scenario)


def test_large_tasks_are_read_a_few_at_a_time(any_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        ids = [(await kit.enqueue(payload=b'{"x":"%s"}' % (b"." * 250_000)))[0] for _ in range(40)]
        wanted = [*ids, kit.ids.task_id(), ids[0]]
        await kit.store.get(wanted[:1])
        any_server.command("CONFIG", "RESETSTAT")
        found = await kit.store.get(wanted)
        assert [task and task.task_id for task in found] == [*ids, None, ids[0]]
        assert script_calls(any_server) == 3
        assert [task.task_id for task in (await kit.store.find(Query(limit=100))).tasks] == ids[::-1]

    with_kit(any_server, scenario)


def test_a_wake_up_that_nobody_takes_expires(any_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        for number in range(20):
            await kit.enqueue(queue=f"queue-{number}")
            await kit.apply(ack(await kit.reserve_one(queues=(f"queue-{number}",))))
        await kit.enqueue(delay_ms=1_000)
        wakeups = any_server.command("KEYS", "{hf:0}/wakeup/*")
        assert len(wakeups) == 21
        assert all(any_server.command("PTTL", key) > 0 for key in wakeups)

    with_kit(any_server, scenario)


def test_one_call_notifies_a_part_of_many_queues_and_the_next_ones_the_others(any_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        for start in range(0, 5_000, 500):
            await kit.store.enqueue([kit.new_task(queue=f"queue-{start + number}") for number in range(500)])
        any_server.command(
            "EVAL", "for _, key in ipairs(redis.call('KEYS', '*/wakeup/*')) do redis.call('DEL', key) end", "0"
        )
        await kit.promote()
        assert 0 < len(any_server.command("KEYS", "*/wakeup/queue-*")) < 2_500
        for _ in range(9):
            await kit.promote()
        assert len(any_server.command("KEYS", "*/wakeup/queue-*")) == 5_000

    with_kit(any_server, scenario)


def test_one_claim_id_holds_no_more_than_one_answer_has_room_for(any_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.enqueue(10, payload=KILOBYTE)
        request = replace(kit.request(10, max_bytes=2_500), fresh=True)
        answers = [await kit.store.reserve(request) for _ in range(3)]
        assert [(len(answer.tasks), answer.cut) for answer in answers] == [(2, True)] * 3
        assert (await kit.counts()).states == {State.READY: 8, State.CLAIMED: 2}

    with_kit(any_server, scenario)


def test_records_of_discarded_tasks_are_bounded_in_number(any_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        write_discards(any_server, [0] * DISCARDS_LIMIT)
        dead = await kit.dead_letter()
        await kit.apply(lifecycle.discard(dead, "not needed"))
        assert any_server.command("ZCARD", "{hf:0}/names/discard") == DISCARDS_LIMIT
        assert [each.task_id for each in await discards(kit.store, 1)] == [dead]
        assert len(await discards(kit.store, 2 * DISCARDS_LIMIT)) == DISCARDS_LIMIT
        assert len(any_server.command("KEYS", "{hf:0}/document/discard/*")) == DISCARDS_LIMIT

    with_kit(any_server, scenario)


def test_old_records_of_discarded_tasks_go_a_few_at_a_time(any_server: RedisServer) -> None:
    async def scenario(kit: Kit) -> None:
        write_discards(any_server, [0] * 300 + [kit.clock.now_ms()])
        epoch, left = await kit.leader_epoch(), []
        for _ in range(3):
            await kit.store.prune(epoch, Retention())
            left.append(any_server.command("ZCARD", "{hf:0}/names/discard"))
        assert left == [101, 1, 1]

    with_kit(any_server, scenario)


def write_discards(server: RedisServer, times_ms: list[int]) -> None:
    """Records as the scripts write them, the oldest first."""
    with server.client(decode_responses=False) as client:
        pipeline = client.pipeline(transaction=False)
        for number, at_ms in enumerate(times_ms, 1):
            name = f"{number:032x}"
            record = msgspec.msgpack.encode((name, "kit.work", "default", "{}", "", at_ms, ""))
            pipeline.set(f"{{hf:0}}/document/discard/{name}", b"1:::" + record)
            pipeline.zadd("{hf:0}/names/discard", {name: number})
        pipeline.execute()
