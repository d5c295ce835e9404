"""The loop around the jobs: it ends when it is told to, whatever happens in that moment, and every ring is heard."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from holdfast.core.task import NewTask, State
from holdfast.errors import HoldfastError, StaleEpoch, StoreUnavailable
from holdfast.maintenance.service import Maintenance
from holdfast.stores.contract import MAINTENANCE, Promoted, Retention, Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store


class Interfering(PassingStore):
    """Lets something happen at the first promotion."""

    def __init__(self, inner: Store, happening: Callable[[], HoldfastError]) -> None:
        super().__init__(inner)
        self._happening = happening

    async def partitions(self) -> list[Store]:
        return [self]

    async def promote(self, epoch: int, limit: int = 1_000) -> Promoted:
        raise self._happening()


@pytest.mark.parametrize("error", [StaleEpoch("owned by another"), StoreUnavailable("away")])
def test_it_ends_although_it_loses_its_duty_in_the_moment_in_which_it_is_told_to(error: HoldfastError) -> None:
    async def run() -> None:
        def happen() -> HoldfastError:
            maintenance.cancel()
            return error

        store = Interfering(open_store("sqlite://"), happen)
        maintenance = asyncio.create_task(Maintenance(store, "me", Retention(), random_unit=random.random).run())
        done, _ = await asyncio.wait([maintenance], timeout=20)
        assert done == {maintenance}
        assert (await store.lead(MAINTENANCE, None)).owner != "me"
        await store.close()

    asyncio.run(run())


def test_a_delayed_task_is_promoted_in_time_beside_the_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the wake-up, and with the pause of the schedules, it would be an hour late.
    monkeypatch.setattr("holdfast.maintenance.promoter._SAFETY_POLL_MS", 3_600_000)
    monkeypatch.setattr("holdfast.maintenance.service._BETWEEN_LOOKS_MS", 3_600_000)

    async def run() -> None:
        store = open_store("sqlite://")
        maintenance = asyncio.create_task(Maintenance(store, "me", Retention(), random_unit=random.random).run())
        async with asyncio.timeout(60):
            while not (await store.lead(MAINTENANCE, None)).owner:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for number in range(20):  # a wake-up for each: what is due now is due earlier than anything before
                task_id = f"{number:032x}"
                await store.enqueue([NewTask(task_id=task_id, type="t", queue="q", payload=b"{}", delay_ms=30)])
                while (task := (await store.get([task_id]))[0]) is None or task.state is not State.READY:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
        maintenance.cancel()
        await asyncio.gather(maintenance, return_exceptions=True)
        await store.close()

    asyncio.run(run())
