"""Of versions that were released: their databases become what today's are, their workers go on beside ours."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.core.fairness import QueueShare
from holdfast.core.task import NewTask
from holdfast.stores.contract import Reserve
from holdfast.stores.open import open_store
from tests.postgres.schemas import STEPS, ask, dump, migrate
from tests.servers.postgres import PostgresServer

#: The steps that each released version had taken.
RELEASED = {"version_2": 2}
ID = "01a3185c500000000001214c86f37f9c"
#: As the code of version 2 makes its calls.
ENQUEUE = """
SELECT * FROM holdfast.enqueue(
    NULL, 0, ARRAY[%(id)s]::uuid[], ARRAY['{}'::bytea], NULL, NULL, NULL, ARRAY['q'], ARRAY['t'], ARRAY[3],
    ARRAY[0::bigint], ARRAY[NULL]::bigint[], NULL)
"""
RESERVE = """
SELECT * FROM holdfast.{function}(
    NULL, 0, NULL, NULL, NULL, NULL, NULL, 'claim', 'w', NULL, ARRAY['q'], ARRAY[5], 5, 30000, NULL,
    '{{}}', '{{}}', '{{}}', '{{}}')
"""
SETTLE = """
SELECT * FROM holdfast.apply(NULL, NULL, NULL, NULL, %(others)s, NULL)
"""
RELEASE = """
[{"place": 0, "event": "release", "task_id": "%s", "token": "%s", "lapsed_only": false, "epoch": null, "delay_ms": 0,
  "outcome": "released", "error_type": null, "error": null, "reason": null}]
"""


def _load(url: str, version: str) -> None:
    ask(url, Path(__file__).with_name("released").joinpath(f"{version}.sql").read_text("utf-8"))


@pytest.mark.parametrize("version", RELEASED)
def test_released_schema_becomes_the_one_of_today(
    postgres_server: PostgresServer, database_url: str, version: str
) -> None:
    today = postgres_server.make_database()
    _load(database_url, version)
    assert asyncio.run(migrate(database_url)) == STEPS[RELEASED[version] :]
    assert asyncio.run(migrate(postgres_server.url(today))) == STEPS
    assert dump(database_url) == dump(postgres_server.url(today))
    postgres_server.drop_database(today)


@pytest.mark.parametrize("version", RELEASED)
def test_tasks_of_a_released_schema_are_run(database_url: str, version: str) -> None:
    _load(database_url, version)
    ask(database_url, ENQUEUE, id=ID)
    request = Reserve(claim_id="claim", worker_id="w", shares=[QueueShare("q", 1)], max_tasks=1, lease_ms=30_000)

    async def run() -> None:
        store = open_store(database_url)
        [claimed] = (await store.reserve(request)).tasks
        assert (claimed.task_id, claimed.priority) == (ID, 3)
        assert claimed.claimed_at_ms >= claimed.created_at_ms
        [known] = await store.enqueue([NewTask(task_id=ID, type="t", queue="q", payload=b"{}", priority=3)])
        assert not known.created
        assert known.conflict is None
        await store.close()

    asyncio.run(run())


#: What workers of older versions call to reserve, and how many columns they expect.
RESERVED_BY = {"version_2": ("reserve", 10), "version_4": ("exchange", 11)}


@pytest.mark.parametrize(("function", "columns"), RESERVED_BY.values(), ids=RESERVED_BY.keys())
def test_worker_of_an_older_version_goes_on_with_the_schema_of_today(
    database_url: str, function: str, columns: int
) -> None:
    asyncio.run(migrate(database_url))
    assert ask(database_url, ENQUEUE, id=ID) == []
    floor, task = ask(database_url, RESERVE.format(function=function))
    assert floor[0] == "floor"
    assert (task[0], task[2], task[3:6], len(task)) == ("task", ID, (1, 1, 0), columns)
    [verdict] = ask(database_url, SETTLE, others=RELEASE % (ID, "0.1.claim"))
    assert verdict == (0, True, False, "", "ready", "q")
    ask(database_url, "SELECT holdfast.set_step('other', 5)")
    ask(database_url, "SELECT holdfast.pause('q', true)")
    counts = ask(database_url, "SELECT queue, state, number FROM holdfast.counts(NULL)")
    assert set(counts) == {("q", "ready", 1), ("q", None, None)}
    ask(database_url, "SELECT holdfast.announce(NULL, 'w', '{}', 1000)")
    assert ask(database_url, "SELECT worker_id FROM holdfast.workers") == [("w",)]
