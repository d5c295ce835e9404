"""Work that stays the same however much has passed: beside a held snapshot, after an ANALYZE, with many lanes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.task import Hold, State
from holdfast.errors import BadOption
from holdfast.stores.contract import MAINTENANCE, Query, Reserve, Retention, Store
from holdfast.stores.open import open_store
from holdfast.stores.postgres import store as store_module
from holdfast.stores.postgres.connection import connected
from holdfast.stores.postgres.migrate import MAX_INDEXES_OF_A_QUEUE
from holdfast.stores.postgres.urls import parse_postgres_url
from holdfast.testing.kit.kit import KEEP_NOTHING, ack, give_up, retry
from tests.postgres.rig import Rig
from tests.postgres.schemas import migrate
from tests.support import eventually

TASKS = 500
ROUNDS = 6
AT_WORK = """
SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast' AND datname = current_database()
"""
ENQUEUE = """
SELECT holdfast.enqueue(
    %s, 0, ROW(ARRAY[%s]::uuid[], ARRAY['{}'::bytea], NULL, NULL, NULL, ARRAY['q'], ARRAY['t'], ARRAY[0],
               ARRAY[0::bigint], ARRAY[NULL]::bigint[], NULL)::holdfast.batch)
"""
HAND_OVER = """
SELECT kind, task_id FROM holdfast.hand_over(
    %s, NULL, ROW('c', 'w', NULL, ARRAY['q'], ARRAY[1], 1, 1000000, 30000, NULL, 0)::holdfast.reservation,
    ROW('{}', '{}', '{}', '{}')::holdfast.floors)
"""
#: Entries of all indexes that one task may cost in all calls of a round together, dead ones included.
MOST_A_TASK = 60


@contextmanager
def _snapshot(url: str) -> Iterator[None]:
    with psycopg.connect(url) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        yield


async def _maintain(rig: Rig) -> None:
    """All that the leader does once, by a process of its own."""
    store = rig.open()
    epoch = (await store.lead(MAINTENANCE, "owner", 3_600_000_000)).epoch
    await store.promote(epoch)
    await store.expired()
    await store.prune(epoch, Retention())
    await store.close()


async def _round(rig: Rig) -> None:
    """Tasks go every way through the store, which is empty again at the end: acks, retries, heartbeats, looks."""
    rig.clock.advance(5_000)
    store = rig.open()
    await store.enqueue(rig.tasks(TASKS))
    claims = await rig.claim(store, TASKS)
    holds = [Hold(claim.task_id, claim.token) for claim in claims]
    assert all(answer.held for answer in await store.extend(holds, 30_000))
    assert all(task is not None for task in await store.get([claim.task_id for claim in claims[:50]]))
    for claim in claims[:20]:
        [verdict] = await store.apply([retry(claim, 1)])
        assert verdict.applied
    assert all(verdict.applied for verdict in await store.apply([ack(claim) for claim in claims[20:]]))
    rig.clock.advance(1_000)
    await store.close()
    await _maintain(rig)
    store = rig.open()
    again = await rig.claim(store, TASKS)
    assert len(again) == 20
    assert all(verdict.applied for verdict in await store.apply([ack(claim) for claim in again]))
    await store.close()


def _read(rig: Rig) -> dict[str, int]:
    """How many entries of each index were read so far; told by each backend at the latest when it ends."""
    eventually(lambda: rig.ask(AT_WORK) == [(0,)])
    rows = rig.ask("SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = 'holdfast'")
    return {name: int(number) for name, number in rows}


def test_no_call_walks_over_what_a_held_snapshot_keeps(database_url: str) -> None:
    """The tables are analyzed when they are empty, which makes a walk over a whole index look cheap."""
    rig = Rig(database_url)
    asyncio.run(_round(rig))
    with _snapshot(database_url):
        last, second = _read(rig), 0
        for number in range(ROUNDS):
            rig.ask("ANALYZE")
            asyncio.run(_round(rig))
            now = _read(rig)
            walked = {name: now[name] - last.get(name, 0) for name in now}
            last = now
            assert sum(walked.values()) < MOST_A_TASK * TASKS, (number, walked)
            second = sum(walked.values()) if number == 1 else second
        # The last round costs what the second one did; before the first, nobody held anything.
        assert sum(walked.values()) < 1.2 * second, walked


def test_maintenance_does_not_walk_over_what_a_held_snapshot_keeps(database_url: str) -> None:
    rig = Rig(database_url)
    with _snapshot(database_url):
        for _ in range(ROUNDS):
            asyncio.run(_round(rig))
        rig.clock.advance(60_000)
        asyncio.run(_maintain(rig))
        before = _read(rig)
        for _ in range(3):
            rig.clock.advance(1_000)
            asyncio.run(_maintain(rig))
        after = _read(rig)
    walked = {name: after[name] - before[name] for name in after}
    # The rows of the last moments before everything stopped, each time, and none of those before.
    assert sum(walked.values()) < 3 * 1.2 * TASKS, walked


def test_task_of_a_transaction_that_outlives_many_sweeps_is_found(database_url: str) -> None:
    rig = Rig(database_url)

    async def run() -> None:
        store = rig.open()
        await store.enqueue(rig.tasks(1))
        assert len(await rig.claim(store)) == 1
        await store.close()
        [late] = rig.tasks(1)
        with psycopg.connect(database_url) as slow:
            await _maintain(rig)
            slow.execute(ENQUEUE, (rig.clock.now_ms(), late.task_id))
            for _ in range(5):
                rig.clock.advance(5_000)
                store = rig.open()
                await store.enqueue(rig.tasks(20))
                assert len(await rig.claim(store, 20)) == 20
                await store.close()
                await _maintain(rig)
            slow.commit()
        store = rig.open()
        assert await rig.claim(store, 1) == []
        await _maintain(rig)
        assert [claim.task_id for claim in await rig.claim(store, 1)] == [late.task_id]
        await store.close()

    asyncio.run(run())


def test_clock_that_is_set_back_hides_nothing(database_url: str) -> None:
    rig = Rig(database_url)

    async def run() -> None:
        for hour in (0, 1, -1):
            rig.clock.advance(hour * 3_600_000)
            for _ in range(3):
                rig.clock.advance(2_000)
                store = rig.open()
                await store.enqueue(rig.tasks(5))
                await store.enqueue([rig.task(delay_ms=500)])
                await _maintain(rig)
                rig.clock.advance(1_000)
                await _maintain(rig)
                assert len(await rig.claim(store, 10)) == 6
                await store.close()

    asyncio.run(run())


def test_claim_that_is_rolled_back_leaves_nothing_below_the_floor(database_url: str) -> None:
    """Another worker passes the tasks that the claim has locked, and raises the floor meanwhile."""
    rig = Rig(database_url)

    async def run() -> None:
        store = rig.open()
        for _ in range(3):
            await store.enqueue(rig.tasks(1))
            rig.clock.advance(5_000)
        with psycopg.connect(database_url) as stalled:
            [(_, locked), *_] = stalled.execute(HAND_OVER, (rig.clock.now_ms(),)).fetchall()
            assert len(await rig.claim(store, 2)) == 2
            stalled.rollback()
        await store.close()
        other = rig.open()
        assert [claim.task_id for claim in await rig.claim(other)] == [locked.replace("-", "")]
        await other.close()

    asyncio.run(run())


def test_lanes_with_waiting_tasks_do_not_hide_those_without_a_task(database_url: str) -> None:
    rig = Rig(database_url)

    async def run() -> None:
        store = rig.open()
        for start in range(0, 12_000, 1_000):
            await store.enqueue(
                [rig.task(queue=f"q{start // 4_000}", type=f"t{start + number}") for number in range(1_000)]
            )
        rig.ask(
            "INSERT INTO holdfast.lanes (queue, type, priority) "
            "SELECT 'dead' || n, 't', 0 FROM generate_series(1, 500) n"
        )
        epoch = (await store.lead(MAINTENANCE, "owner", 3_600_000)).epoch
        for _ in range(60):
            await store.prune(epoch, Retention())
            if rig.ask("SELECT count(*) FROM holdfast.lanes WHERE queue ~ '^dead'") == [(0,)]:
                break
        assert rig.ask("SELECT count(*) FROM holdfast.lanes") == [(12_000,)]
        await store.close()

    asyncio.run(run())


def test_lanes_without_a_task_are_deleted(database_url: str) -> None:
    rig = Rig(database_url)

    async def run() -> None:
        store = rig.open()
        await store.enqueue([rig.task(queue=f"q{number}", type=f"t{number}") for number in range(200)])
        await store.enqueue([rig.task(queue="later", delay_ms=1_000_000_000), rig.task(queue="waits")])
        await store.enqueue([rig.task(queue="runs"), rig.task(queue="held")])
        queues = [f"q{number}" for number in range(200)]
        for shares in (queues, ["runs"]):
            request = Reserve(
                claim_id=rig.ids.claim_id(),
                worker_id="w",
                shares=[QueueShare(queue, 1) for queue in shares],
                max_tasks=200,
                lease_ms=30_000,
            )
            claims = (await store.reserve(request)).tasks
            assert len(claims) == len(shares)
            if shares == queues:
                await store.apply([ack(claim) for claim in claims])
        eventually(lambda: rig.ask("SELECT count(*) >= 200 FROM holdfast.unheard") == [(True,)])
        epoch = (await store.lead(MAINTENANCE, "owner", 60_000)).epoch
        rig.clock.advance(10)
        await store.prune(epoch, KEEP_NOTHING)
        left = rig.ask("SELECT queue FROM holdfast.lanes ORDER BY queue")
        assert left == [("held",), ("later",), ("runs",), ("waits",)]
        assert rig.ask("SELECT count(*) FROM holdfast.unheard WHERE wakeup ~ '^q'") == [(0,)]
        await store.close()

    asyncio.run(run())


def test_lane_that_a_transaction_is_about_to_use_stays(database_url: str) -> None:
    rig = Rig(database_url)

    async def run() -> None:
        store = rig.open()
        await store.enqueue(rig.tasks(1))
        await store.apply([ack(claim) for claim in await rig.claim(store)])
        epoch = (await store.lead(MAINTENANCE, "owner", 60_000)).epoch
        [late] = rig.tasks(1)
        with psycopg.connect(database_url) as slow:
            slow.execute(ENQUEUE, (rig.clock.now_ms(), late.task_id))
            rig.clock.advance(10)
            await store.prune(epoch, KEEP_NOTHING)
            slow.commit()
        assert [claim.task_id for claim in await rig.claim(store)] == [late.task_id]
        await store.close()

    asyncio.run(run())


async def _fill_lanes(rig: Rig, store: Store) -> None:
    for start in range(0, MAX_INDEXES_OF_A_QUEUE, 1_000):
        await store.enqueue([rig.task(type=f"made-up-{number}") for number in range(start, start + 1_000)])


def test_lanes_of_a_queue_are_limited_and_only_those_asked_for_are_looked_at(database_url: str) -> None:
    rig = Rig(database_url)

    async def run() -> None:
        store = rig.open()
        await _fill_lanes(rig, store)
        with pytest.raises(BadOption, match=f"{MAX_INDEXES_OF_A_QUEUE:,} combinations of task type and priority"):
            await store.enqueue([rig.task(type="one-more")])
        await store.enqueue([rig.task(type="one-more", queue="other"), rig.task(type="made-up-7")])
        await store.close()

    async def claim() -> None:
        store = rig.open()
        request = Reserve(
            claim_id=rig.ids.claim_id(),
            worker_id="w",
            shares=[QueueShare("q", 5)],
            max_tasks=5,
            lease_ms=30_000,
            types=frozenset({"made-up-7", "made-up-9"}),
        )
        assert len((await store.reserve(request)).tasks) == 3
        await store.close()

    asyncio.run(run())
    before = _read(rig)
    asyncio.run(claim())
    after = _read(rig)
    assert sum(after[name] - before[name] for name in after) < 100


def test_request_id_that_stands_for_nothing_is_used_again(database_url: str) -> None:
    """It cannot be left over by ours; an endless loop in the database would be a bad answer all the same."""
    rig = Rig(database_url)

    async def run() -> None:
        store = rig.open()
        await store.migrate()
        rig.ask(f"INSERT INTO holdfast.requests VALUES ('q', 'r', '{rig.ids.task_id()}')")
        [answer] = await store.enqueue([rig.task(request_id="r")])
        assert answer.created
        [again] = await store.enqueue([rig.task(request_id="r")])
        assert (again.created, again.task_id) == (False, answer.task_id)
        await store.close()

    asyncio.run(run())


def test_request_ids_go_with_their_tasks(database_url: str) -> None:
    rig = Rig(database_url)

    async def run() -> None:
        store = rig.open()
        await store.enqueue([rig.task(request_id="pruned"), rig.task(request_id="discarded")])
        done, dead = await rig.claim(store)
        await store.apply([ack(done), give_up(dead), lifecycle.discard(dead.task_id, "why")])
        assert rig.ask("SELECT request_id FROM holdfast.requests") == [("pruned",)]
        rig.clock.advance(10)
        leader = await store.lead(MAINTENANCE, "owner", 60_000)
        assert await store.prune(leader.epoch, KEEP_NOTHING) == 1
        assert rig.ask("SELECT request_id FROM holdfast.requests") == []
        await store.close()

    asyncio.run(run())


def test_heartbeats_and_settlements_never_deadlock(database_url: str) -> None:
    """Batches of acks and releases in any order, beside heartbeats for the same tasks."""
    rig = Rig(database_url)

    async def settle(store: Store, claims: list[lifecycle.Change]) -> None:
        for start in range(0, len(claims), 20):
            await store.apply(claims[start : start + 20])

    async def beat(store: Store, holds: list[Hold], ended: asyncio.Event) -> None:
        while not ended.is_set():
            await store.extend(holds, 30_000)

    async def run() -> None:
        first, second = rig.open(), rig.open()
        for turn in range(10):
            await first.enqueue(rig.tasks(200))
            claims = await rig.claim(first, 200)
            changes = [
                ack(claim) if number % 3 else lifecycle.release(claim.task_id, claim.token)
                for number, claim in enumerate(claims)
            ]
            if turn % 2:
                changes.reverse()
            ended = asyncio.Event()
            holds = [Hold(claim.task_id, claim.token) for claim in claims]
            beats = [asyncio.create_task(beat(second, holds, ended)) for _ in range(2)]
            await asyncio.gather(settle(first, changes[::2]), settle(first, changes[1::2]))
            ended.set()
            await asyncio.gather(*beats)
        await first.close()
        await second.close()

    rig.ask("ALTER DATABASE " + database_url.rsplit("/", 1)[1] + " SET deadlock_timeout = '10ms'")
    asyncio.run(run())
    _read(rig)
    assert rig.ask("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]
    [(state, number)] = rig.ask("SELECT state, sum(number) FROM holdfast.tally GROUP BY state")
    assert (state, number) == (State.SUCCEEDED, 10 * 133)


FINISHED = 20_000
#: Dead letters, of which the last attempt of each ended with this error.
MAKE_FINISHED = """
WITH lane AS (INSERT INTO holdfast.lanes (queue, type, priority) VALUES ('q', 't', 0) RETURNING lane),
new AS (
    INSERT INTO holdfast.tasks (task_id, lane, rank, created_at, payload)
    SELECT lpad(to_hex(n), 32, '0')::uuid, lane, n, n, '{{}}' FROM lane, generate_series(1, {number}) n
    RETURNING task_id, lane, rank
), ended AS (
    INSERT INTO holdfast.attempts (
        task_id, delivery, attempt, token, worker_id, event, outcome, started_at, ended_at, error_type)
    SELECT task_id, 1, 1, '', 'w', 'bury', 'failed', 1, 1, CASE rank WHEN 77 THEN 'Rare' ELSE 'Usual' END FROM new
)
INSERT INTO holdfast.finished (task_id, lane, attempt, deliveries, finished_at, delete_at, state)
SELECT task_id, lane, 1, 1, 1, 1, 'dead_lettered' FROM new
"""


def test_search_for_an_error_reads_only_those(database_url: str) -> None:
    rig = Rig(database_url)

    async def find(error_type: str) -> list[int]:
        store = rig.open()
        query = Query(error_type=error_type, states=frozenset({State.DEAD_LETTERED}))
        page = await store.find(query)
        assert page.cursor is None
        await store.close()
        return [int(task.task_id, 16) for task in page.tasks]

    asyncio.run(migrate(database_url))
    rig.ask(MAKE_FINISHED.format(number=FINISHED))
    before = _read(rig)
    assert asyncio.run(find("Rare")) == [77]
    assert asyncio.run(find("Nope")) == []
    after = _read(rig)
    assert sum(after[name] - before[name] for name in after) < 100


def test_search_that_takes_too_long_says_how_far_it_came(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call walks over everything, and the pages together leave nothing out."""
    rig = Rig(database_url)
    monkeypatch.setattr(store_module, "_SEARCH_MS", 0)

    async def pages() -> list[tuple[int, bool]]:
        store = rig.open()
        cursor, found = None, []
        while True:
            page = await store.find(Query(worker_id=None, type="other", limit=10, cursor=cursor))
            found.append((len(page.tasks), page.cursor is not None))
            cursor = page.cursor
            if cursor is None:
                await store.close()
                return found

    asyncio.run(migrate(database_url))
    rig.ask(MAKE_FINISHED.format(number=6 * FINISHED))
    rig.ask("INSERT INTO holdfast.lanes (queue, type, priority) VALUES ('q', 'other', 0)")
    rig.ask("UPDATE holdfast.tasks SET lane = 2 WHERE rank = 77")
    assert asyncio.run(pages()) == [(0, True), (1, False)]


def test_calls_that_wait_for_a_lock_leave_half_of_the_connections(database_url: str) -> None:
    rig = Rig(database_url)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

    async def run() -> None:
        store = open_store(f"{database_url}?connections=4&deadline=60s")
        await store.migrate()
        with psycopg.connect(database_url) as holder:
            holder.execute("INSERT INTO holdfast.requests VALUES ('q', 'r', %s)", (rig.ids.task_id(),))
            waiters = [asyncio.create_task(store.enqueue([rig.task(request_id="r")])) for _ in range(12)]
            await asyncio.to_thread(eventually, lambda: rig.ask(waiting) == [(2,)])
            [answer] = await store.enqueue(rig.tasks(1))
            assert answer.created
            assert not any(waiter.done() for waiter in waiters)
            assert rig.ask(waiting)[0][0] <= 2
            holder.rollback()
        answers = [answer for [answer] in await asyncio.gather(*waiters)]
        assert sum(answer.created for answer in answers) == 1
        await store.close()

    asyncio.run(run())


def test_read_that_nobody_waits_for_is_stopped_in_the_server(database_url: str) -> None:
    rig = Rig(database_url)
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'"

    async def run() -> None:
        settings = parse_postgres_url(database_url)
        line = await connected(settings.login, settings.login.addresses[0], settings)
        line.only_reads = True
        asking = asyncio.create_task(line.ask("SELECT pg_sleep(600)"))
        await asyncio.to_thread(eventually, lambda: rig.ask(sleeping) == [(1,)])
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(run())
    eventually(lambda: rig.ask(sleeping) == [(0,)])
