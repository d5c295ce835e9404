"""Which partition is asked: the partition map as this process knows it, and calls that follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy as copied
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from msgspec.structs import replace

from holdfast.core.partitions import PartitionMap, first_map
from holdfast.errors import BadOption, BadUrl, StaleMap, StoreUnavailable
from holdfast.stores import documents
from holdfast.stores.contract import MAINTENANCE, Document, DocumentPage, DocumentResult, DocumentWrite, Store
from holdfast.stores.sharded.absences import Absences
from holdfast.stores.sharded.gather import all_of, awaited, in_order, together

Item = TypeVar("Item")
Answer = TypeVar("Answer")

#: A map that changes more often than this while one call is under way is no map.
MOST_REFRESHES: Final = 10
#: Queues whose partitions one process remembers: a server is asked for any that its clients make up.
MOST_QUEUES: Final = 10_000
#: An epoch that no leader ever has.
NO_EPOCH: Final = -1
_PARTITION_DIGITS = slice(12, 16)
#: A partition that takes longer to tell the map is not waited for if another one has told it.
_MAP_SECONDS: Final = 0.5


@dataclass(slots=True)
class _Known:
    """What a process knows of the partitions: the same for the router of a store and those of its views."""

    map: PartitionMap | None = None
    candidates: dict[str, tuple[int, ...]] = field(default_factory=dict)
    turn: int = 0
    refusal: BadUrl | None = None


class Router:
    """The partitions and the map by which calls find them; asked anew when a partition knows a newer one."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self.stores = tuple(stores)
        self._known = _Known()
        self._looking: set[asyncio.Task[DocumentPage]] = set()
        self._absences = Absences(_look_at_map)
        #: Of a view that does without them: why partitions were left out. None where each of them has to answer.
        self.left_out: dict[int, StoreUnavailable] | None = None
        self._until_deadline = False

    def in_part(self, *, until_deadline: bool) -> Router:
        """One that goes by the same map, and records in `left_out` which partitions do not answer."""
        view = copied(self)
        view.left_out = {}
        view._until_deadline = until_deadline  # noqa: SLF001
        return view

    # -- the map --------------------------------------------------------------------------------------------

    async def map(self) -> PartitionMap:
        """The map that this process goes by, fetched on first use."""
        if self._known.refusal is not None:
            raise self._known.refusal
        return self._known.map or await self.refresh()

    @property
    def known_map(self) -> PartitionMap | None:
        """The map, if it was fetched already."""
        return self._known.map

    @property
    def map_version(self) -> int:
        """The version by which calls are routed now."""
        return 0 if self._known.map is None else self._known.map.version

    async def refresh(self) -> PartitionMap:
        """Fetches the newest map, and hands it to the partitions that have missed it."""
        newest, _ = await self.newest()
        return newest

    async def newest(self) -> tuple[PartitionMap, int]:
        """As `refresh`, with the time of the partitions that were asked."""
        pages = await self._pages()
        copies = [page if isinstance(page, Exception) else _copy_of(page) for page in pages]
        known = {n: copy for n, copy in enumerate(copies) if isinstance(copy, PartitionMap)}
        newest = self._checked(max(known.values(), key=lambda copy: copy.version, default=None), copies)
        if newest.version == 0:
            newest = await self._divide(copies)
        newest = newest.copy_for(0)
        missing = [n for n, copy in known.items() if copy.version < newest.version]
        await self.hand_on(newest, missing)
        if len(missing) > 1:
            await self._check_apart()
        self._use(newest)
        return newest, min(page.now_ms for page in pages if isinstance(page, DocumentPage))

    async def _pages(self) -> list[DocumentPage | Exception]:
        """The copy of each partition; one that is slow is not waited for where the others know the map."""
        looks = [asyncio.create_task(awaited(_look_at_map(store))) for store in self.stores]
        try:
            await asyncio.wait(looks, timeout=_MAP_SECONDS)
            while not all(look.done() for look in looks):
                if any(_answer_of(look).version for look in looks):
                    break
                await asyncio.wait([look for look in looks if not look.done()], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            for look in looks:
                look.cancel()
            raise
        for place, look in enumerate(looks):
            if not look.done():
                self._looking.add(look)
                look.add_done_callback(partial(self._check_later, place))
        return [await _outcome(look, store) for look, store in zip(looks, self.stores, strict=True)]

    def _check_later(self, place: int, look: asyncio.Task[DocumentPage]) -> None:
        """One that was too slow to be waited for must be in its place too."""
        self._looking.discard(look)
        copy = _answer_of(look)
        if copy.version and copy.partition != place:
            self._known.refusal = self._misplaced(place, copy)

    async def _check_apart(self) -> None:
        """Refuses two URLs of one database, which take each other's copy of the map for their own."""
        copies = await together(documents.partition_map(store) for store in self.stores)
        for place, copy in enumerate(copies):
            if isinstance(copy, PartitionMap) and copy.version and copy.partition != place:
                same = f"{self.stores[place].url} and {self.stores[copy.partition].url} are one database"
                raise BadUrl(f"{same}: name each partition once, such as redis://a/0,redis://a/1")

    async def hand_on(self, newest: PartitionMap, partitions: Iterable[int]) -> None:
        """Gives copies to partitions. One that is away gets its copy from the next process that asks for the map."""
        puts = [documents.put_partition_map(self.stores[n], newest.copy_for(n)) for n in partitions]
        for answer in await together(puts):
            if isinstance(answer, Exception) and not isinstance(answer, StoreUnavailable | StaleMap):
                raise answer

    async def change(self, write: DocumentWrite) -> DocumentResult:
        """Makes a new map the current one: partition 0 decides, then the others get their copies."""
        if write.value is None:
            raise BadOption("the partition map cannot be removed")
        new = documents.map_of(Document(write.kind, write.name, write.value, write.version)).copy_for(0)
        result = await self.stores[0].put(replace(write, value=documents.map_write(new, new.version).value))
        if result.applied:
            await self.hand_on(new, range(1, len(self.stores)))
            self._use(new)
        return result

    def place(self, queue: str, request_id: str | None) -> int:
        """The partition for a new task."""
        known = self._known
        candidates = known.candidates.get(queue)
        if candidates is None:
            if len(known.candidates) >= MOST_QUEUES:
                known.candidates.clear()
            candidates = known.candidates[queue] = (known.map or PartitionMap()).partitions(queue)
        if request_id is not None or len(candidates) == 1:
            return candidates[0]
        known.turn += 1
        return candidates[known.turn % len(candidates)]

    def turned(self, partitions: Sequence[int]) -> list[int]:
        """The partitions in another order each time, so that none is always the last to be asked."""
        self._known.turn += 1
        start = self._known.turn % len(partitions)
        return [*partitions[start:], *partitions[:start]]

    async def _divide(self, copies: Sequence[PartitionMap | Exception]) -> PartitionMap:
        """The first map of a new store. Partition 0 decides between two processes that begin at the same time."""
        if isinstance(copies[0], Exception):
            raise copies[0]
        try:
            return await documents.put_partition_map(
                self.stores[0], first_map(tuple(store.url for store in self.stores))
            )
        except StaleMap:
            return await documents.partition_map(self.stores[0])

    def _checked(self, newest: PartitionMap | None, copies: Sequence[PartitionMap | Exception]) -> PartitionMap:
        """The map, if it is one of these stores in this order; a wrong list would split queues unnoticed."""
        if newest is None:
            raise next(copy for copy in copies if isinstance(copy, Exception))
        if newest.version and len(newest.shards) != len(self.stores):
            raise BadUrl(f"the store has {len(newest.shards)} partitions, the URL lists {len(self.stores)}")
        for place, copy in enumerate(copies):
            if isinstance(copy, PartitionMap) and copy.version and copy.partition != place:
                raise self._misplaced(place, copy)
        return newest

    def _misplaced(self, place: int, copy: PartitionMap) -> BadUrl:
        text = f"{self.stores[place].url} is partition {copy.partition}, the URL lists it as partition {place}"
        return BadUrl(f"{text}: list the partitions in the order in which they were made")

    def _use(self, newest: PartitionMap) -> None:
        known = self._known
        if known.map is not None and known.map.version >= newest.version:
            return
        known.map = newest
        known.candidates = {}

    # -- calls ----------------------------------------------------------------------------------------------

    async def routed(self, partition: int, call: Callable[[Store, int], Awaitable[Answer]]) -> Answer:
        """Makes a call with the version of the map, again by the newer map when the partition refuses the old one.

        It goes to the same partition: where a task may be only grows, so what was a right place stays one.
        """
        for _ in range(MOST_REFRESHES):
            try:
                return await call(self.stores[partition], self.map_version)
            except StaleMap:
                await self.refresh()
        return await call(self.stores[partition], self.map_version)

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

    async def from_all(self, call: Callable[[Store], Awaitable[Answer]]) -> dict[int, Answer]:
        """The answers of all partitions by their numbers, in this order."""
        await self.map()
        return await all_of({n: call(store) for n, store in enumerate(self.stores)})

    async def from_those_there(
        self, calls: Mapping[int, Callable[[], Awaitable[Answer]]], *, all_may_be_away: bool = False
    ) -> dict[int, Answer]:
        """The answers by partition; where some may be left out, of those that answer, if there is one."""
        if self.left_out is None:
            return await all_of({n: call() for n, call in calls.items()})
        answers = dict(zip(calls, await together(self._attempt(n, call) for n, call in calls.items()), strict=True))
        away = {n: answer for n, answer in answers.items() if isinstance(answer, StoreUnavailable)}
        for n, answer in answers.items():
            if isinstance(answer, Exception) and (n not in away or (len(away) == len(answers) and not all_may_be_away)):
                raise answer
        self.left_out |= away
        return {n: answer for n, answer in answers.items() if not isinstance(answer, Exception)}

    async def _attempt(self, partition: int, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer of a partition, once more only if it was not left out before."""
        left_out = self.left_out or {}
        if partition in left_out:
            raise StoreUnavailable(str(left_out[partition]))
        if self._until_deadline:
            return await call()
        return await self._absences.answer(partition, self.stores[partition], call)

    async def epochs(self, epoch: int) -> list[int]:
        """The epoch of each partition that belongs to this one of partition 0, `NO_EPOCH` where it is over."""
        leaders = await all_of({n: store.lead(MAINTENANCE, None) for n, store in enumerate(self.stores)})
        if leaders[0].epoch != epoch:
            return [NO_EPOCH] * len(self.stores)
        return [each.epoch if each.owner == leaders[0].owner else NO_EPOCH for each in leaders.values()]

    async def first_there(self, call: Callable[[Store], Awaitable[Answer]]) -> tuple[int, Answer]:
        """The answer of partition 0; where partitions may be left out, of the first one that answers."""
        await self.map()
        if self.left_out is None:
            return 0, await call(self.stores[0])
        for n, store in enumerate(self.stores):
            try:
                return n, await self._attempt(n, partial(call, store))
            except StoreUnavailable as error:
                if n == len(self.stores) - 1:
                    raise
                self.left_out[n] = error
        raise AssertionError("a sharded store has partitions")

    def grouped(self, items: Sequence[Item], task_id: Callable[[Item], str]) -> dict[int, list[int]]:
        """The places of the items in the batch, by partition."""
        groups: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            groups.setdefault(self.partition(task_id(item)), []).append(place)
        return groups


def _look_at_map(store: Store) -> Awaitable[DocumentPage]:
    return store.documents(documents.MAP, names=[documents.MAP_NAME])


def _copy_of(page: DocumentPage) -> PartitionMap:
    return documents.map_of(page.documents[0] if page.documents else None)


def _answer_of(look: asyncio.Task[DocumentPage]) -> PartitionMap:
    """The copy that a partition gave, or the map that says nothing."""
    failed = not look.done() or look.cancelled() or look.exception() is not None
    return PartitionMap() if failed else _copy_of(look.result())


async def _outcome(look: asyncio.Task[DocumentPage], store: Store) -> DocumentPage | Exception:
    if not look.done():
        return StoreUnavailable(f"{store.url}: no answer within {_MAP_SECONDS:g} s")
    error = look.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return look.result() if error is None else error
