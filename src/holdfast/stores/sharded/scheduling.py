"""Schedules over many partitions: each lies where the tasks of its ticks go, so that both are one transaction.

A schedule whose call moves to a queue of another partition moves after it: the old place is told first that there is
nothing to do any more, so that no tick is made twice, and the same call made again finishes a move that was cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from holdfast.core.partitions import PartitionMap
from holdfast.core.schedule import Schedule
from holdfast.core.task import NewTask
from holdfast.errors import BadOption
from holdfast.stores.contract import DueSchedules
from holdfast.stores.sharded import upkeep
from holdfast.stores.sharded.routing import Router


async def schedules(router: Router, due_within_ms: int | None, limit: int) -> DueSchedules:
    """The schedules of all partitions, the soonest first."""
    current = await router.map()
    found = await router.from_all(lambda store: store.schedules(due_within_ms, limit))
    copies: dict[str, dict[int, Schedule]] = {}
    for n, due in enumerate(found):
        for schedule in due.schedules:
            copies.setdefault(schedule.name, {})[n] = schedule
    chosen = [places[_chosen(current, places)] for places in copies.values()]
    return DueSchedules(min(due.now_ms for due in found), sorted(chosen, key=_soonest)[:limit])


async def schedule(router: Router, name: str) -> Schedule | None:
    """The schedule of this name, wherever it lies."""
    copies = await _copies(router, name)
    return copies[_chosen(await router.map(), copies)] if copies else None


async def put(
    router: Router, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask], epoch: int | None
) -> bool:
    """Replaces a schedule where it lies; one whose queue lies elsewhere now is moved there."""
    current = await router.map()
    copies = await _copies(router, name)
    lies = _chosen(current, copies) if copies else None
    home = (lies or 0) if new is None else _home(current, new)
    _check_together(router, name, tasks, home)
    places = _Places(router, name, await _own_epochs(router, epoch))
    if new is None or lies is None or lies == home:
        done = await places.put(home, new, expected, tasks)
    else:
        done = await _told_to_move(places, lies, copies[lies], new, expected)
        left = copies[home].version if home in copies else 0
        done = done and await places.put(home, new, left, tasks)
    if done:
        await places.clear(n for n in copies if n != home)
    return done


async def _told_to_move(places: _Places, lies: int, found: Schedule, new: Schedule, expected: int) -> bool:
    """Whether the old place makes no ticks any more; it is where the expected version is compared."""
    moving = replace(new, next_at_ms=None)
    return found == moving or await places.put(lies, moving, expected)


class _Places:
    """The copies of one schedule, each in its partition."""

    def __init__(self, router: Router, name: str, epochs: Sequence[int | None]) -> None:
        self._router = router
        self._name = name
        self._epochs = epochs

    async def put(self, n: int, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = ()) -> bool:
        """Replaces or removes the copy in one partition."""
        return await self._router.routed(
            n, lambda store: store.put_schedule(self._name, new, expected, tasks, self._epochs[n])
        )

    async def clear(self, partitions: Iterable[int]) -> None:
        """Removes what a move, or one that was cut off, has left behind."""
        for n in partitions:
            left = await self._router.stores[n].schedule(self._name)
            if left is not None:
                await self.put(n, None, left.version)


async def _own_epochs(router: Router, epoch: int | None) -> Sequence[int | None]:
    return [None] * len(router.stores) if epoch is None else await upkeep.epochs(router.stores, epoch)


def _check_together(router: Router, name: str, tasks: Sequence[NewTask], home: int) -> None:
    if any(router.partition(task.task_id) != home for task in tasks):
        text = f"schedule {name!r} lies in partition {home}, and only tasks that lie there can be recorded with it"
        raise BadOption(f"{text}: make their ids with the store's placement, for its queue and a request_id")


async def _copies(router: Router, name: str) -> dict[int, Schedule]:
    """The schedule by the partitions that have it: one, unless a move was cut off."""
    found = await router.from_all(lambda store: store.schedule(name))
    return {n: schedule for n, schedule in enumerate(found) if schedule is not None}


def _chosen(current: PartitionMap, copies: Mapping[int, Schedule]) -> int:
    """The place of the copy that counts: the newest, and of two the one that has arrived."""
    return max(copies, key=lambda n: (copies[n].version, n == _home(current, copies[n])))


def _home(current: PartitionMap, schedule: Schedule) -> int:
    return current.partitions(schedule.call.queue)[0]


def _soonest(schedule: Schedule) -> tuple[bool, int, str]:
    return schedule.next_at_ms is None, schedule.next_at_ms or 0, schedule.name
