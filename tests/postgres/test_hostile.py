"""What others put into the store: refused where it comes in, and alone in its misfortune where it is there already."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast.core.ids import occurrence_id
from holdfast.testing.kit.kit import ack
from tests.postgres.rig import Rig
from tests.postgres.schemas import migrate
from tests.servers.postgres import PostgresServer


@pytest.fixture
def guest(postgres_server: PostgresServer, database: str) -> Iterator[str]:
    """The URL of a role that may use the schema, and nothing else."""
    asyncio.run(migrate(postgres_server.url(database)))
    role = f"guest_{database}"
    with postgres_server.connect(database) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN")
        owner.execute(f"GRANT USAGE ON SCHEMA holdfast TO {role}")
    yield postgres_server.url(database, user=role)
    with postgres_server.connect(database) as owner:
        owner.execute(f"DROP OWNED BY {role}")
        owner.execute(f"DROP ROLE {role}")


def _within(url: str, rig: Rig, call: dict[str, Any] | None = None, **fields: Any) -> list[tuple[Any, ...]]:
    """What `enqueue_within` answers to a task with these fields."""
    [(home,)] = rig.ask("SELECT holdfast.home()")
    task = {
        "task_id": rig.ids.task_id(),
        "type": "t",
        "queue": "q",
        "payload": "e30=",
        "priority": 0,
        "delay_ms": 0,
        **fields,
    }
    text = json.dumps({"home": home, "level": "local", "map_version": 0, "tasks": [task], **(call or {})})
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute("SELECT * FROM holdfast.enqueue_within(%s)", (text,)).fetchall()


@pytest.mark.parametrize(
    "fields",
    [
        {"policy": "garbage"},
        {"policy": "[]"},
        {"policy": '{"x":"' + "y" * 70_000 + '"}'},
        {"policy": '{"x":' + "[" * 2_000 + "]" * 2_000 + "}"},
        {"policy": '{"x":{"y":1}}'},
        {"policy": '{"give_up_on":[["a"]]}'},
        {"policy": '{"jitter":-1e300}'},
        {"policy": '{"jitter":1.1}'},
        {"policy": '{"jitter":1e308}'},
        {"policy": '{"base_ms":1' + "0" * 30 + "}"},
        {"policy": '{"cap_ms":-1}'},
        {"policy": '{"max_attempts":1001}'},
        {"policy": '{"dead_letter_ttl_ms":999999999999999}'},
        {"headers": "garbage"},
        {"headers": '{"a": 1}'},
        {"headers": '["a"]'},
        {"queue": "*maintenance"},
        {"queue": "q\n"},
        {"queue": None},
        {"type": "a b"},
        {"type": "t" * 129},
        {"type": None},
        {"request_id": ""},
        {"request_id": "a b"},
        {"request_id": "r" * 201},
        {"priority": 101},
        {"priority": -101},
        {"priority": None},
        {"delay_ms": -1},
        {"delay_ms": None},
        {"delay_ms": 9_000_000_000_000_000_000},
        {"run_at_ms": -1},
        {"payload": None},
        {"payload": "!"},
        {"task_id": None},
        {"task_id": occurrence_id("nightly", 1_800_000_000_000, 0)},
        {"request_id": "schedule:nightly@2027-01-15T08:00:00Z"},
    ],
    ids=lambda fields: " ".join(f"{name}={str(value)[:20]!r}" for name, value in fields.items()),
)
def test_guest_records_nothing_that_is_no_task(guest: str, database_url: str, fields: dict[str, Any]) -> None:
    rig = Rig(database_url)
    with pytest.raises(psycopg.Error) as refused:
        _within(guest, rig, **fields)
    assert refused.value.sqlstate in {"HF003", "22P02", "22023", "22003"}
    assert rig.ask("SELECT count(*) FROM holdfast.tasks") == [(0,)]


def test_guest_does_not_set_the_clock(guest: str, database_url: str) -> None:
    rig = Rig(database_url)
    assert _within(guest, rig, {"now": 1}) == []
    assert rig.ask("SELECT min(created_at) > 1700000000000 FROM holdfast.tasks") == [(True,)]
    assert _within(database_url, rig, {"now": 1}) == []
    assert rig.ask("SELECT min(created_at) FROM holdfast.tasks") == [(1,)]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_isolation_of_the_database_is_not_ours(database_url: str, level: str) -> None:
    rig = Rig(database_url)
    rig.ask(f"ALTER DATABASE {database_url.rsplit('/', 1)[1]} SET default_transaction_isolation = '{level}'")

    async def run() -> None:
        stores = [rig.open() for _ in range(4)]
        await stores[0].enqueue(rig.tasks(400))
        done = 0
        for _ in range(10):
            batches = await asyncio.gather(*(rig.claim(store, 10) for store in stores))
            verdicts = await asyncio.gather(
                *(store.apply([ack(claim) for claim in claims]) for store, claims in zip(stores, batches, strict=True))
            )
            done += sum(verdict.applied for batch in verdicts for verdict in batch)
        assert done == 400
        for store in stores:
            await store.close()

    asyncio.run(run())
    assert rig.ask("SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()") == [(0,)]
