"""Documents beside other transactions: the claim of a memo stays while it is stored, and a write waits for another."""

from __future__ import annotations

import asyncio

import psycopg

from holdfast.core.task import Hold, State
from holdfast.stores import documents
from holdfast.stores.contract import DocumentWrite
from holdfast.testing.kit.kit import ack
from tests.postgres.rig import Rig
from tests.support import eventually

#: A memo of this claim, in a transaction that the test ends.
PUT_MEMO = """
SELECT outcome FROM holdfast.put(
    %s, ROW('memo', 'key', 'first', 0, 0, NULL, 60000, NULL, %s, %s, 0)::holdfast.document_write, NULL)
"""


def _waits_for_a_lock(rig: Rig) -> None:
    eventually(lambda: rig.ask("SELECT count(*) FROM pg_locks WHERE NOT granted") != [(0,)])


def test_claim_that_is_being_settled_stores_no_memo(database_url: str) -> None:
    rig = Rig(database_url)

    async def run() -> None:
        store = rig.open()
        await store.enqueue(rig.tasks(1))
        [claim] = await rig.claim(store)
        with psycopg.connect(database_url) as settler:
            settler.execute("DELETE FROM holdfast.claims")
            hold = Hold(claim.task_id, claim.token)
            keeping = asyncio.create_task(documents.keep(store, "key", b"late", 60_000, hold))
            await asyncio.to_thread(_waits_for_a_lock, rig)
            settler.commit()
        assert await keeping == documents.Memo(None, "stale_claim")
        assert await documents.kept(store, "key") is None
        await store.close()

    asyncio.run(run())


def test_settlement_waits_until_the_memo_is_stored(database_url: str) -> None:
    rig = Rig(database_url)

    async def run() -> None:
        store = rig.open()
        await store.enqueue(rig.tasks(1))
        [claim] = await rig.claim(store)
        with psycopg.connect(database_url) as writer:
            found = writer.execute(PUT_MEMO, (rig.clock.now_ms(), claim.task_id, claim.token)).fetchall()
            assert found == [("applied",)]
            # A heartbeat need not wait for it.
            [extension] = await store.extend([Hold(claim.task_id, claim.token)], 30_000)
            assert extension.held
            settling = asyncio.create_task(store.apply([ack(claim)]))
            await asyncio.to_thread(_waits_for_a_lock, rig)
            writer.commit()
        [verdict] = await settling
        assert verdict.state is State.SUCCEEDED
        assert await documents.kept(store, "key") == b"first"
        await store.close()

    asyncio.run(run())


def test_first_write_of_a_document_is_waited_for(database_url: str) -> None:
    """There is no row yet that the second writer could wait for."""
    rig = Rig(database_url)

    async def run() -> None:
        store = rig.open()
        await store.migrate()
        with psycopg.connect(database_url) as writer:
            writer.execute(PUT_MEMO, (rig.clock.now_ms(), None, None))
            write = DocumentWrite(kind="memo", name="key", value=b"second", expected=0)
            putting = asyncio.create_task(store.put(write))
            await asyncio.to_thread(_waits_for_a_lock, rig)
            writer.commit()
        result = await putting
        assert (result.applied, result.reason) == (False, "version")
        assert result.document is not None
        assert (result.document.value, result.document.version) == (b"first", 1)
        await store.close()

    asyncio.run(run())
