"""Reserve over many partitions: never more than asked for, by share and queue, the same tasks for the same claim_id.

A worker under load asks one partition a call, another one the next time. Only when that one has too little are
the others asked, and never for more together than is still missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from msgspec.structs import replace

from holdfast.core.fairness import QueueShare
from holdfast.core.lifecycle import Change, Verdict, release
from holdfast.core.partitions import PartitionMap
from holdfast.core.task import Claimed
from holdfast.errors import StaleMap, StoreUnavailable
from holdfast.stores.contract import Reserve, Reserved
from holdfast.stores.sharded.gather import awaited, together
from holdfast.stores.sharded.router import MOST_REFRESHES, Router

#: A partition, and what it is asked for.
Call = tuple[int, Reserve]


async def reserve(router: Router, request: Reserve, settle: Sequence[Change]) -> Reserved:
    """Settles first, then finds again what the claim_id holds, or claims.

    Claimed tasks are released if a partition does not answer: the caller hears of none of them, renews nothing, and
    repeats the call for as long as the partition is away, while other workers could run them.
    """
    exchange = _Exchange(router, request, settle)
    try:
        return await _reserve_by_the_map(exchange, request)
    except StoreUnavailable:
        await exchange.hand_back()
        raise


async def _reserve_by_the_map(exchange: _Exchange, request: Reserve) -> Reserved:
    for _ in range(MOST_REFRESHES):
        try:
            return await _reserve(exchange, request)
        except StaleMap:
            # Some partitions may have served the round that others refused: what they gave is found again.
            await exchange.router.refresh()
            exchange.taken.clear()
            request = replace(request, fresh=False)
    return await _reserve(exchange, request)


async def _reserve(exchange: _Exchange, request: Reserve) -> Reserved:
    places = _places(await exchange.router.map(), request) if request.max_tasks > 0 else set()
    if len(places) == 1:
        await exchange.ask([(n, request) for n in places])  # the partition itself knows all about repeats and shares
    elif places:
        await _reserve_from_many(exchange, request)
    await exchange.ask([])
    return exchange.answer()


async def _reserve_from_many(exchange: _Exchange, request: Reserve) -> None:
    router = exchange.router
    if not request.fresh:
        await _find_held(exchange, replace(request, types=frozenset()))
    if exchange.taken or request.types == frozenset():
        return
    plan = _Plan(router, request)
    while not exchange.cut and (calls := plan.next_calls(await router.map())):
        plan.note(calls, await exchange.ask(exchange.fitting(calls)))


async def _find_held(exchange: _Exchange, request: Reserve) -> None:
    """Claims of this id may lie anywhere, and nothing may be claimed before all have said what they hold."""
    places = _places(await exchange.router.map(), request)
    await exchange.ask([(n, request) for n in sorted(places)])


def _places(current: PartitionMap, request: Reserve) -> set[int]:
    return {n for share in request.shares for n in current.reach(share.queue)}


class _Exchange:
    """What one reserve call has settled and claimed so far."""

    def __init__(self, router: Router, request: Reserve, settle: Sequence[Change]) -> None:
        self.router = router
        self.request = request
        self.taken: dict[str, Claimed] = {}
        #: Something stayed behind in a partition because the answer had become too large.
        self.cut = False
        self._bytes_left = request.max_bytes
        self._settle = settle
        self._to_settle = router.grouped(settle, lambda change: change.task_id)
        self._verdicts: dict[int, Verdict] = {}

    async def ask(self, calls: Sequence[Call]) -> list[list[Claimed]]:
        """Sends requests to partitions, and all that is to be settled with them; the new tasks that each one gave."""
        alone: list[tuple[int, Reserve | None]] = [(n, None) for n in self._to_settle if n not in dict(calls)]
        sent: dict[int, Awaitable[Reserved]] = {}
        carrying: set[int] = set()
        for number, (n, request) in enumerate([*calls, *alone]):
            # Settlements go once, with the first request to their partition.
            sent[number] = self._send(n, request, [] if n in carrying else self._to_settle.get(n, []))
            carrying.add(n)
        answers = await together(awaited(call) for call in sent.values())
        taken = [self._take(answer) for answer in answers[: len(calls)] if isinstance(answer, Reserved)]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return taken

    async def hand_back(self) -> None:
        """Releases what was claimed, wherever that can be reached; what cannot be is found by a repeat."""
        claims = list(self.taken.values())
        groups = self.router.grouped(claims, lambda task: task.task_id)
        releases = {n: [release(claims[i].task_id, claims[i].token) for i in group] for n, group in groups.items()}
        await together(self.router.stores[n].apply(changes) for n, changes in releases.items())

    def fitting(self, calls: Sequence[Call]) -> list[Call]:
        """The calls, with the bytes that are still free divided among them; each may bring one task in any case."""
        each = max(self._bytes_left, 0) // len(calls)
        return [(n, replace(request, max_bytes=each)) for n, request in calls]

    def _take(self, answer: Reserved) -> list[Claimed]:
        new = [task for task in answer.tasks if task.task_id not in self.taken]
        self.taken.update((task.task_id, task) for task in new)
        self.cut = self.cut or answer.cut
        self._bytes_left -= sum(len(task.payload) for task in new)
        return new

    async def _send(self, n: int, request: Reserve | None, places: Sequence[int]) -> Reserved:
        store = self.router.stores[n]
        changes = [self._settle[place] for place in places]
        if request is None:
            answer = Reserved([], await store.apply(changes))
        else:
            answer = await store.reserve(replace(request, map_version=self.router.map_version), changes)
        self._verdicts.update(zip(places, answer.verdicts, strict=True))
        if places:
            del self._to_settle[n]  # done, even if the round has to be made again
        return answer

    def answer(self) -> Reserved:
        """The tasks in the order of the queues, and the verdicts in the order of the changes."""
        position = {share.queue: place for place, share in enumerate(self.request.shares)}
        tasks = sorted(self.taken.values(), key=lambda task: position.get(task.queue, 0))
        return Reserved(tasks, [self._verdicts[place] for place in range(len(self._settle))], self.cut)


class _Plan:
    """Which partition to ask for how many tasks of which queues, round by round, until nothing is missing."""

    def __init__(self, router: Router, request: Reserve) -> None:
        self._router = router
        self._request = request
        self._missing = request.max_tasks
        #: What each queue may still take of its share; afterwards every queue may take what is left.
        self._room = {share.queue: share.limit for share in request.shares}
        self._asked: set[str] = set()
        #: Queues that have no more tasks in a partition: it gave less than it was asked for.
        self._dry: set[tuple[str, int]] = set()

    def next_calls(self, current: PartitionMap) -> list[Call]:
        """The next round: concurrent requests that together ask for no more than is missing."""
        if self._missing <= 0:
            return []
        live = {queue: self._live(current, queue) for queue in self._room}
        shares = {queue: room for queue, room in self._room.items() if room > 0 and live[queue]}
        rooms = shares or {queue: self._missing for queue in self._room if live[queue]}
        calls: list[Call] = []
        budget = self._missing
        for queue, room in rooms.items():
            if not budget and not self._goes_along(calls, live[queue], room):
                break
            share = min(room, budget)
            budget -= share
            if share:
                parts = self._divided(queue, live[queue], share)
                calls += [(n, self._request_for(part, [QueueShare(queue, part)])) for n, part in parts]
            else:
                n, request = calls[0]
                calls[0] = n, replace(request, shares=[*request.shares, QueueShare(queue, room)])
        return calls

    def _goes_along(self, calls: Sequence[Call], live: Sequence[int], room: int) -> bool:
        """Whether the one partition that is asked can by itself go on with this queue, in strict order."""
        return len(calls) == 1 and [calls[0][0]] == live and room >= self._missing

    def _request_for(self, number: int, shares: Sequence[QueueShare]) -> Reserve:
        # One queue a request: a partition would give what one of its queues leaves over to the next of its own.
        return replace(self._request, shares=shares, max_tasks=number, fresh=True)

    def note(self, calls: Sequence[Call], got: Sequence[Sequence[Claimed]]) -> None:
        """Takes account of what a round has brought."""
        for (n, request), tasks in zip(calls, got, strict=True):
            queues = {share.queue for share in request.shares}
            self._asked |= queues
            if len(tasks) < request.max_tasks:
                self._dry |= {(queue, n) for queue in queues}
            for task in tasks:
                self._missing -= 1
                self._room[task.queue] -= 1

    def _live(self, current: PartitionMap, queue: str) -> list[int]:
        return [n for n in current.reach(queue) if (queue, n) not in self._dry]

    def _divided(self, queue: str, live: Sequence[int], share: int) -> list[tuple[int, int]]:
        """All from one partition at first; what that one does not have, from all others at the same time."""
        turned = self._router.turned(live)
        if queue not in self._asked:
            return [(turned[0], share)]
        each, rest = divmod(share, len(turned))
        parts = [(n, each + (place < rest)) for place, n in enumerate(turned)]
        return [(n, part) for n, part in parts if part]
