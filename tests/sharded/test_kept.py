"""Values under keys in a sharded store: one home for a key, whatever becomes of the partitions."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.core.partitions import first_map
from holdfast.stores import documents
from holdfast.stores.open import open_store
from holdfast.stores.sharded.documents import memo_home as home
from tests.sharded.harness import url_of

KEYS = [f"order-{n}" for n in range(50)]


def test_keys_are_spread_over_the_partitions() -> None:
    current = first_map(("a", "b", "c"))
    assert {home(current, key) for key in KEYS} == {0, 1, 2}


def test_a_key_stays_where_it_is_when_partitions_are_added() -> None:
    current = first_map(("a", "b", "c"))
    grown = current.with_shards(("a", "b", "c", "d", "e")).with_spread("default", 5)
    assert [home(grown, key) for key in KEYS] == [home(current, key) for key in KEYS]


def test_each_partition_keeps_its_own_keys(tmp_path: Path) -> None:
    async def run() -> None:
        store = open_store(url_of(tmp_path))
        try:
            for key in KEYS:
                await documents.keep(store, key, key.encode(), 60_000, None)
            current = await documents.partition_map(store)
            for key in KEYS:
                found = [await documents.kept(partition, key) for partition in await store.partitions()]
                wanted = [key.encode() if n == home(current, key) else None for n in range(3)]
                assert found == wanted
        finally:
            await store.close()

    asyncio.run(run())
