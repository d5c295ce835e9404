"""Three nodes, twenty schedules, and a clock that crosses both changes of the year: each occurrence exactly once."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.admin import schedules as actions
from holdfast.core.schedule.decide import changed_timing
from holdfast.core.schedule.occurrences import shown_time
from holdfast.core.schedule.record import Timing
from holdfast.stores import documents
from holdfast.stores.contract import MAINTENANCE, Store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.harness import StoreHarness
from tests.core.schedule.test_timing import Oracle, ms
from tests.maintenance.setting import CALL, hasten, nodes, occurrences_made, until

#: Daily ones, with the usual policy: one occurrence at most falls between two looks.
DAILY = ["30 2 * * *", "30 1 * * *", "0 3 * * *", "59 1 * * *", "15 2 * * *", "0 0 * * *"]
#: Those with many occurrences between two looks, which are all made up for.
OFTEN = ["*/30 * * * *", "*/7 * * * *", "0 * * * *", "5,35 1-4 * * *"]
ZONES = ["America/New_York", "Europe/Berlin"]
CHANGES = {
    "America/New_York": ("2027-03-14", "2027-11-07"),
    "Europe/Berlin": ("2027-03-28", "2027-10-31"),
}
STEP_MS, NIGHT_MS = 13 * 60_000, 7 * 3_600_000


async def _put_all(store: Store, zone_name: str) -> None:
    for line in (*DAILY, *OFTEN):
        timing = changed_timing(Timing(), cron=line, timezone=zone_name)
        if line in OFTEN:
            timing = changed_timing(timing, missed="all", window="2h")
        await actions.put(store, _name(line), timing, CALL)
    for seconds in range(600, 4_200, 360):  # ten more, by interval
        await actions.put(store, f"every-{seconds}", changed_timing(Timing(), every=seconds, missed="all"), CALL)


def _name(line: str) -> str:
    return line.replace(" ", "_").replace("*", "x").replace("/", ":").replace(",", ".")


async def _pass_night(store: Store, clock: SteppedClock, end_ms: int) -> None:
    while clock.now_ms() < end_ms:
        clock.advance(STEP_MS)
        await until(lambda: _nothing_is_due(store))


async def _nothing_is_due(store: Store) -> bool:
    return not (await documents.schedules(store, 0)).schedules


def _expected(zone_name: str, start_ms: int, end_ms: int) -> dict[str, list[str]]:
    by_line = {_name(line): Oracle(line, zone_name).between(start_ms, end_ms) for line in (*DAILY, *OFTEN)}
    for seconds in range(600, 4_200, 360):
        step_ms = seconds * 1000
        by_line[f"every-{seconds}"] = list(range((start_ms // step_ms + 1) * step_ms, end_ms + 1, step_ms))
    return {
        name: [shown_time(occurrence) for occurrence in occurrences]
        for name, occurrences in by_line.items()
        if occurrences
    }


@pytest.mark.parametrize("zone_name", [ZONES[0], pytest.param(ZONES[1], marks=pytest.mark.long)])
@pytest.mark.parametrize("change", [0, 1], ids=["spring", "autumn"])
def test_each_occurrence_happens_once_in_the_night_in_which_the_clocks_change(
    harness: StoreHarness, zone_name: str, change: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasten(monkeypatch)
    start_ms = ms(CHANGES[zone_name][change], zone_name) - 3_600_000

    async def run() -> None:
        clock = harness.clock
        clock.advance(start_ms - clock.now_ms())
        store = await harness.open()
        await store.migrate()
        await _put_all(store, zone_name)
        async with nodes(harness, 3):
            await _pass_night(store, clock, start_ms + NIGHT_MS)
        made = await occurrences_made(store)
        assert {
            occurrence: count for occurrences in made.values() for occurrence, count in occurrences.items() if count > 1
        } == {}
        expected = _expected(zone_name, start_ms, clock.now_ms())
        assert {name: sorted(occurrences) for name, occurrences in made.items()} == expected
        assert (await store.lead(MAINTENANCE, None)).epoch > 2  # each step takes the leadership over
        await store.close()
        await harness.destroy()

    asyncio.run(run())
