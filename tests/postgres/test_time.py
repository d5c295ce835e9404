"""Deadlines, priorities and schedules, as far as only this store can get them wrong."""

from __future__ import annotations

import asyncio
from itertools import count
from random import Random

import psycopg
import pytest
from msgspec.structs import replace

from holdfast import Holdfast
from holdfast.core import lifecycle
from holdfast.core.retry import RunPolicy
from holdfast.core.schedule.record import Schedule, ScheduledCall, Timing
from holdfast.core.task import Claimed, State
from holdfast.errors import StoreUnavailable
from holdfast.stores import documents
from holdfast.stores.contract import MAINTENANCE, Retention, Store
from holdfast.stores.open import open_store
from tests.postgres.rig import Rig
from tests.support import eventually

DAY_MS = 86_400_000
EVERY_SECOND = Schedule(
    name="occurrence", timing=Timing(every_ms=1_000), call=ScheduledCall(type="t", queue="q"), next_at_ms=1
)


def test_deadline_of_a_task_counts_if_its_transaction_commits(database_url: str) -> None:
    with Holdfast(database_url) as app, psycopg.connect(database_url) as session:

        @app.task(name="t", expires="1ms")
        def work() -> None: ...

        work.using(transaction=session).enqueue()
        session.rollback()
        recorded = work.using(transaction=session).enqueue()
        session.commit()

    async def unstarted() -> list[str]:
        store = open_store(database_url)
        try:
            return (await store.expired()).unstarted
        finally:
            await store.close()

    assert eventually(lambda: asyncio.run(unstarted())) == [recorded.task_id]


def test_no_deadline_outlives_its_task(database_url: str) -> None:
    rig = Rig(database_url)
    later = RunPolicy(max_attempts=1, expires_ms=30 * DAY_MS)

    def deadlines() -> int:
        return int(rig.ask("SELECT count(*) FROM holdfast.deadlines")[0][0])

    async def run() -> None:
        store = rig.open()
        begun = [rig.task(policy=later), rig.task(policy=later, request_id="r")]
        await store.enqueue([*begun, rig.task(policy=replace(later, expires_ms=DAY_MS))])
        await store.enqueue(begun)
        assert deadlines() == 3
        pruned, discarded, passed = await rig.claim(store)
        await store.apply(
            [
                lifecycle.stop(pruned.task_id, pruned.token),
                lifecycle.lose(discarded.task_id, discarded.token, "worker_lost", attempt=1, policy=later),
                lifecycle.discard(discarded.task_id, "no use"),
                lifecycle.ack(passed.task_id, passed.token),
            ]
        )
        assert deadlines() == 2
        rig.clock.advance(DAY_MS + 1)
        assert (await store.expired()).unstarted == []
        assert deadlines() == 1
        leader = await store.lead(MAINTENANCE, "owner", 60_000)
        assert await store.prune(leader.epoch, Retention()) == 2
        assert deadlines() == 0
        await store.close()

    asyncio.run(run())


def test_task_that_was_begun_and_handed_back_does_not_expire(database_url: str) -> None:
    """It is claimed and released between the look of another transaction at it and its end there."""
    rig = Rig(database_url)
    expire = "SELECT applied, reason FROM holdfast.apply(%s, NULL, NULL, NULL, %s, NULL)"
    change = '[{{"place": 0, "event": "expire", "task_id": "{}", "expired_only": false, "delay_ms": 0, "outcome": ""}}]'

    async def run() -> None:
        store = rig.open()
        task = rig.task(policy=RunPolicy(expires_ms=1))
        await store.enqueue([task])
        rig.clock.advance(1)
        with psycopg.connect(database_url) as blocker:
            blocker.execute("SELECT FROM holdfast.ready FOR UPDATE")
            answer = asyncio.create_task(_expire_elsewhere())
            await asyncio.to_thread(eventually, _somebody_waits)
            blocker.execute("UPDATE holdfast.ready SET deliveries = 1")
            blocker.commit()
        assert await answer == (False, "wrong_state")
        await store.close()

    async def _expire_elsewhere() -> tuple[bool, str]:
        [(task_id,)] = rig.ask("SELECT encode(uuid_send(task_id), 'hex') FROM holdfast.tasks")
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            found = await connection.execute(expire, (rig.clock.now_ms(), change.format(task_id)))
            row = await found.fetchone()
            assert row is not None
            return row

    def _somebody_waits() -> bool:
        return rig.ask("SELECT count(*) FROM pg_locks WHERE NOT granted") != [(0,)]

    asyncio.run(run())


def test_task_that_gets_another_priority_is_seen_by_others_at_once(database_url: str) -> None:
    """Below the floor that they remember for the lane into which it comes."""
    rig = Rig(database_url)

    async def run() -> None:
        first, second = rig.open(), rig.open()
        old = rig.task(priority=0)
        await first.enqueue([old])
        for _ in range(3):
            rig.clock.advance(90_000)
            await second.enqueue(rig.tasks(2, [5]))
            assert [claim.priority for claim in await rig.claim(second, 1)] == [5]
        await first.apply([lifecycle.prioritize(old.task_id, 5)])
        [claimed] = await rig.claim(second, 1)
        assert (claimed.task_id, claimed.priority) == (old.task_id, 5)
        await first.close()
        await second.close()

    asyncio.run(run())


def test_tasks_change_their_priorities_while_they_are_claimed(database_url: str) -> None:
    """On the server's own clock: each is claimed once, and the counts are right."""
    rig = Rig(database_url)
    total = 600

    async def shuffle(store: Store, ids: list[str], random: Random) -> None:
        while ids:
            changes = [
                lifecycle.prioritize(task_id, random.randint(-2, 2)) for task_id in random.sample(ids, min(5, len(ids)))
            ]
            await store.apply(changes)

    async def work(store: Store, waiting: list[str], done: list[str]) -> None:
        held: list[Claimed] = []
        while waiting:
            held = await rig.claim(store, 3, held)
            for claim in held:
                waiting.remove(claim.task_id)
                done.append(claim.task_id)
            leader = await store.lead(MAINTENANCE, "owner", 60_000)
            await store.promote(leader.epoch)
        await store.apply([lifecycle.ack(claim.task_id, claim.token) for claim in held])

    async def run() -> None:
        stores = [open_store(database_url) for _ in range(4)]
        tasks = rig.tasks(total, [0, 1])
        await stores[0].enqueue(tasks)
        waiting, done = [task.task_id for task in tasks], list[str]()
        async with asyncio.timeout(60):
            await asyncio.gather(
                *(shuffle(store, waiting, Random(seed)) for seed, store in enumerate(stores[:2])),
                *(work(store, waiting, done) for store in stores[2:]),
            )
        assert len(done) == len(set(done)) == total
        [counts] = await stores[0].counts()
        assert counts.states == {State.SUCCEEDED: total}
        for store in stores:
            await store.close()

    asyncio.run(run())


def test_of_writers_at_once_one_makes_the_occurrence(database_url: str) -> None:
    rig = Rig(database_url)
    serial = count(1)

    async def fire(store: Store, version: int) -> bool:
        new = replace(EVERY_SECOND, version=version + 1, source=f"writer {next(serial)}")
        return await documents.put_schedule(store, "occurrence", new, version, [rig.task()])

    async def run() -> None:
        stores = [rig.open() for _ in range(6)]
        await stores[0].migrate()
        for version in range(10):
            assert sorted(await asyncio.gather(*(fire(store, version) for store in stores))) == [*[False] * 5, True]
        found = await documents.schedule(stores[0], "occurrence")
        assert found is not None
        assert found.version == 10
        assert rig.ask("SELECT count(*) FROM holdfast.tasks") == [(10,)]
        for store in stores:
            await store.close()

    asyncio.run(run())


def test_schedule_and_its_tasks_are_refused_together(database_url: str) -> None:
    rig = Rig(database_url)

    async def run() -> None:
        store = rig.open()
        await store.migrate()
        rig.ask("ALTER TABLE holdfast.documents ADD CHECK (kind <> 'schedule')")
        with pytest.raises(Exception, match="violates check"):
            await documents.put_schedule(store, "occurrence", EVERY_SECOND, 0, [rig.task()])
        assert await documents.schedule(store, "occurrence") is None
        assert await rig.claim(store) == []
        await store.close()

    asyncio.run(run())


def test_occurrence_does_not_fire_while_no_standby_confirms(durable_database_url: str) -> None:
    rig = Rig(durable_database_url)

    async def run() -> None:
        plain = rig.open()
        await plain.migrate()
        strict = open_store(f"{durable_database_url}?durability=strict&deadline=1s")
        with pytest.raises(StoreUnavailable, match="no synchronous standby"):
            await documents.put_schedule(strict, "occurrence", EVERY_SECOND, 0, [rig.task()])
        assert await documents.schedule(plain, "occurrence") is None
        await strict.close()
        await plain.close()

    asyncio.run(run())
