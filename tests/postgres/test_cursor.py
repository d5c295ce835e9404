"""Floors: a held snapshot does not slow claims down, and nothing is left behind below a floor."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import psycopg
import pytest

from holdfast.core import lifecycle
from holdfast.core.priority import STRICT_STEP_MS
from holdfast.core.task import Claimed, State
from holdfast.stores import documents
from holdfast.stores.contract import MAINTENANCE
from holdfast.stores.open import open_store
from holdfast.testing.kit.kit import ack
from tests.postgres.rig import BATCH, Rig
from tests.support import eventually

PARTS, TASKS = 10, 1_000


async def _pass_through(rig: Rig, number: int, priorities: Sequence[int]) -> None:
    """So many tasks are enqueued, claimed and acked by a process of its own, a while after the last."""
    rig.clock.advance(5_000)
    store = rig.open()
    await store.enqueue(rig.tasks(number, priorities))
    held: list[Claimed] = []
    for _ in range(number // BATCH + 1):
        held = await rig.claim(store, settle=held)
    await store.close()


def _entries_read(rig: Rig) -> int:
    """How many entries of the index of `ready` claims have walked over, dead ones included."""
    [(number,)] = rig.ask("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'ready_pkey'")
    return int(number or 0)


async def _set_step(rig: Rig, step_ms: int) -> None:
    store = rig.open()
    await documents.set_step(store, "q", step_ms)
    await store.close()


@pytest.mark.parametrize(
    ("priorities", "most_a_task"), [((0,), 5), ((0, 1, 2), 25)], ids=["one lane", "lanes merged in strict order"]
)
def test_claims_do_not_walk_over_what_a_held_snapshot_keeps(
    database_url: str, priorities: Sequence[int], most_a_task: int
) -> None:
    rig = Rig(database_url)
    asyncio.run(_set_step(rig, STRICT_STEP_MS))
    asyncio.run(_pass_through(rig, BATCH, priorities))
    with psycopg.connect(database_url) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        read = [_entries_read(rig)]
        for _ in range(PARTS):
            asyncio.run(_pass_through(rig, TASKS, priorities))
            # Told by the backend when it ends, which may be a moment after the connection was closed.
            eventually(lambda: _entries_read(rig) >= read[-1] + TASKS)
            eventually(
                lambda: rig.ask("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'") == [(0,)]
            )
            read.append(_entries_read(rig))
    parts = [after - before for before, after in pairwise(read)]
    # A new process walks over what was claimed since the floor was raised, and never over all that came before; with
    # several lanes it does so in each of them with every batch, until it has claimed from it.
    assert max(parts) < most_a_task * TASKS, parts


def test_task_that_is_committed_late_is_swept_up(database_url: str) -> None:
    rig = Rig(database_url)

    async def run() -> None:
        store = rig.open()
        await store.enqueue(rig.tasks(1))
        await rig.claim(store)
        rig.clock.advance(1)
        [late] = rig.tasks(1)
        with psycopg.connect(database_url) as slow:
            slow.execute(
                "SELECT holdfast.enqueue(%s, 0, ROW(ARRAY[%s]::uuid[], ARRAY['{}'::bytea], NULL, NULL, NULL,"
                " ARRAY['q'], ARRAY['t'], ARRAY[0], ARRAY[0::bigint], ARRAY[NULL]::bigint[], NULL)::holdfast.batch)",
                (rig.clock.now_ms(), late.task_id),
            )
            for _ in range(2):
                rig.clock.advance(5_000)
                await store.enqueue(rig.tasks(2))
                assert len(await rig.claim(store, 2)) == 2
            slow.commit()
        [(above,)] = rig.ask(
            "SELECT count(*) FROM holdfast.ready r JOIN holdfast.lanes l USING (lane) WHERE r.rank < l.floor"
        )
        assert above == 1
        leader = await store.lead(MAINTENANCE, "owner", 60_000)
        await store.promote(leader.epoch)
        assert [claim.task_id for claim in await rig.claim(store)] == [late.task_id]
        await store.close()

    asyncio.run(run())


def test_task_that_is_handed_back_is_seen_by_others_at_once(database_url: str) -> None:
    rig = Rig(database_url)

    async def run() -> None:
        first, second = rig.open(), rig.open()
        await first.enqueue(rig.tasks(1))
        [returned] = await rig.claim(first, 1)
        for _ in range(3):
            rig.clock.advance(5_000)
            await second.enqueue(rig.tasks(2))
            assert len(await rig.claim(second, 1)) == 1
        await first.apply([lifecycle.release(returned.task_id, returned.token)])
        assert [claim.task_id for claim in await rig.claim(second, 1)] == [returned.task_id]
        await first.close()
        await second.close()

    asyncio.run(run())


def test_a_claim_that_saw_the_queue_before_a_task_was_put_back_does_not_raise_the_cursor_over_it(
    database_url: str,
) -> None:
    """A call reads the generation, another one puts a task back, and only then the first one raises the cursor."""
    rig = Rig(database_url)
    raised = "SELECT holdfast.raise_floor({}, {}, {}, {}) FROM set_config('search_path', 'holdfast', true)"

    async def run() -> None:
        store = rig.open()
        await store.enqueue(rig.tasks(1))
        [returned] = await rig.claim(store, 1)
        [(lane, generation, cursor)] = rig.ask("SELECT lane, turn, floor FROM holdfast.lanes")
        await store.apply([lifecycle.release(returned.task_id, returned.token)])
        beyond = rig.clock.now_ms() + 60_000
        rig.ask(raised.format(lane, generation, beyond - 30_000, beyond))
        assert rig.ask("SELECT floor FROM holdfast.lanes") == [(cursor,)]
        [(generation,)] = rig.ask("SELECT turn FROM holdfast.lanes")
        rig.ask(raised.format(lane, generation, beyond - 30_000, beyond))
        assert rig.ask("SELECT floor FROM holdfast.lanes") == [(beyond,)]
        await store.close()

    asyncio.run(run())


def test_nothing_is_left_behind_by_many_producers_and_workers(database_url: str) -> None:
    """On the server's own clock, where transactions end in another order than they began."""
    rig = Rig(database_url)
    total = 4 * 100 * 3

    async def produce() -> None:
        store = open_store(database_url)
        for _ in range(100):
            await store.enqueue(rig.tasks(3))
        await store.close()

    async def work(done: list[str]) -> None:
        store = open_store(database_url)
        held: list[Claimed] = []
        while len(done) < total:
            held = await rig.claim(store, 7, held)
            done += [claim.task_id for claim in held]
            leader = await store.lead(MAINTENANCE, "owner", 60_000)
            await store.promote(leader.epoch)
        await store.apply([ack(claim) for claim in held])
        await store.close()

    async def run() -> None:
        done: list[str] = []
        async with asyncio.timeout(60):
            await asyncio.gather(*(produce() for _ in range(4)), *(work(done) for _ in range(3)))
        assert len(set(done)) == len(done) == total
        store = open_store(database_url)
        [counts] = await store.counts()
        assert counts.states == {State.SUCCEEDED: total}
        await store.close()

    asyncio.run(run())
