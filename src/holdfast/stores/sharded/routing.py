"""Who is asked: the partition map as this process knows it, and calls that follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.core.partitions import PartitionMap, first_map
from holdfast.errors import BadUrl, StaleMap, StoreUnavailable
from holdfast.stores.contract import Store

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Key = TypeVar("Key", bound=Hashable)

#: A map that changes more often than this while one call is under way is no map.
MOST_REFRESHES = 10
_PARTITION_DIGITS = slice(12, 16)


class Router:
    """The partitions and the map by which calls find them; asked anew when a partition knows a newer one."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self.stores = tuple(stores)
        self._map: PartitionMap | None = None
        self._candidates: dict[str, tuple[int, ...]] = {}
        self._turn = 0

    # -- the map --------------------------------------------------------------------------------------------

    async def map(self) -> PartitionMap:
        """The map that this process goes by, fetched on first use."""
        return self._map or await self.refresh()

    @property
    def known_map(self) -> PartitionMap | None:
        """The map, if it was fetched already."""
        return self._map

    async def refresh(self) -> PartitionMap:
        """Fetches the newest map, and hands it to the partitions that have missed it."""
        copies = await together(store.partition_map() for store in self.stores)
        known = {n: copy for n, copy in enumerate(copies) if isinstance(copy, PartitionMap)}
        newest = self._checked(max(known.values(), key=lambda copy: copy.version, default=None), copies)
        if newest.version == 0:
            newest = await self._divide(copies)
        newest = newest.copy_for(0)
        await self.hand_on(newest, [n for n, copy in known.items() if copy.version < newest.version])
        self._use(newest)
        return newest

    async def hand_on(self, newest: PartitionMap, partitions: Iterable[int]) -> None:
        """Gives copies to partitions. One that is away gets its copy from the next who asks for the map."""
        puts = [self.stores[n].put_partition_map(newest.copy_for(n)) for n in partitions]
        for answer in await together(puts):
            if isinstance(answer, Exception) and not isinstance(answer, StoreUnavailable | StaleMap):
                raise answer

    async def change(self, new: PartitionMap) -> PartitionMap:
        """Makes a new map the current one: partition 0 decides, then the others get their copies."""
        decided = await self.stores[0].put_partition_map(new.copy_for(0))
        await self.hand_on(decided, range(1, len(self.stores)))
        self._use(decided)
        return decided

    def place(self, queue: str, request_id: str | None) -> int:
        """The partition for a new task."""
        candidates = self._candidates.get(queue)
        if candidates is None:
            candidates = self._candidates[queue] = (self._map or PartitionMap()).partitions(queue)
        if request_id is not None or len(candidates) == 1:
            return candidates[0]
        self._turn += 1
        return candidates[self._turn % len(candidates)]

    def turned(self, partitions: Sequence[int]) -> list[int]:
        """The partitions in another order each time, so that none is always the last to be asked."""
        self._turn += 1
        start = self._turn % len(partitions)
        return [*partitions[start:], *partitions[:start]]

    async def _divide(self, copies: Sequence[PartitionMap | Exception]) -> PartitionMap:
        """The first map of a new store. Partition 0 decides between two processes that begin at the same time."""
        if isinstance(copies[0], Exception):
            raise copies[0]
        try:
            return await self.stores[0].put_partition_map(first_map(tuple(store.url for store in self.stores)))
        except StaleMap:
            return await self.stores[0].partition_map()

    def _checked(self, newest: PartitionMap | None, copies: Sequence[PartitionMap | Exception]) -> PartitionMap:
        """The map, if it is one of these stores in this order; a wrong list would split queues unnoticed."""
        if newest is None:
            raise next(copy for copy in copies if isinstance(copy, Exception))
        if newest.version and len(newest.shards) != len(self.stores):
            raise BadUrl(f"the store has {len(newest.shards)} partitions, the URL lists {len(self.stores)}")
        for place, copy in enumerate(copies):
            if isinstance(copy, PartitionMap) and copy.version and copy.partition != place:
                text = f"{self.stores[place].url} is partition {copy.partition}, the URL lists it as partition {place}"
                raise BadUrl(f"{text}: list the partitions in the order in which they were made")
        return newest

    def _use(self, newest: PartitionMap) -> None:
        if self._map is not None and self._map.version >= newest.version:
            return
        self._map = newest
        self._candidates = {}
        for store in self.stores:
            store.map_version = newest.version

    # -- calls ----------------------------------------------------------------------------------------------

    async def routed(self, partition: int, call: Callable[[Store], Awaitable[Answer]]) -> Answer:
        """Makes a call, and makes it again by the newer map when the partition refuses the old one.

        It goes to the same partition: where a task may be only grows, so what was a right place stays one.
        """
        for _ in range(MOST_REFRESHES):
            try:
                return await call(self.stores[partition])
            except StaleMap:
                await self.refresh()
        return await call(self.stores[partition])

    def partition(self, task_id: str) -> int:
        """The partition of a task; ids that cannot be known anywhere go to the first, which will say so."""
        try:
            number = int(task_id[_PARTITION_DIGITS], 16)
        except ValueError:
            return 0
        return number if 0 <= number < len(self.stores) else 0

    async def scattered(
        self,
        items: Sequence[Item],
        task_id: Callable[[Item], str],
        call: Callable[[Store, Sequence[Item]], Awaitable[Sequence[Answer]]],
    ) -> list[Answer]:
        """Sends every item to the partition of its task; the answers come in the order of the items."""
        if not items:
            return []
        await self.map()  # to be refused if these are not the partitions of the store, or not in their order
        groups = self.grouped(items, task_id)
        answers = await all_of({n: call(self.stores[n], [items[i] for i in group]) for n, group in groups.items()})
        return in_order(groups, answers)

    async def from_all(self, call: Callable[[Store], Awaitable[Answer]]) -> list[Answer]:
        """The answers of all partitions, in their order."""
        await self.map()
        answers = await all_of({n: call(store) for n, store in enumerate(self.stores)})
        return [answers[n] for n in range(len(self.stores))]

    def grouped(self, items: Sequence[Item], task_id: Callable[[Item], str]) -> dict[int, list[int]]:
        """The places of the items in the batch, by partition."""
        groups: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            groups.setdefault(self.partition(task_id(item)), []).append(place)
        return groups


def in_order(groups: Mapping[int, Sequence[int]], answers: Mapping[int, Sequence[Answer]]) -> list[Answer]:
    """The answers of the partitions, in the order of the batch."""
    by_place = {place: answer for n, group in groups.items() for place, answer in zip(group, answers[n], strict=True)}
    return [by_place[place] for place in range(len(by_place))]


async def together(calls: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer | Exception]:
    """All answers, errors among them; every call has ended when this returns."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, Exception):
            raise answer
    return answers  # type: ignore[return-value]  # the others were raised


async def all_of(calls: Mapping[Key, Awaitable[Answer]]) -> dict[Key, Answer]:
    """The answers by their keys; the first error is raised when all calls have ended, not while some go on."""
    if len(calls) <= 1:
        return {n: await call for n, call in calls.items()}
    answers = await together(_awaited(call) for call in calls.values())
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return dict(zip(calls, answers, strict=True))  # type: ignore[arg-type]  # errors were raised


async def _awaited(call: Awaitable[Answer]) -> Answer:
    return await call
