"""The exchange with the store: settle what has finished, take on what there is room for, in one call."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from time import monotonic_ns

from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.core import lifecycle
from holdfast.core.fairness import QueueOrder
from holdfast.core.ids import IdSource
from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.task import Claimed, Hold
from holdfast.stores.contract import Reserve, Reserved, Store
from holdfast.worker.backoff import persistently
from holdfast.worker.loading import TaskType
from holdfast.worker.messages import FromChild, Held, HeldTask, RungInVain, Worn
from holdfast.worker.run import Run, Workplace
from holdfast.worker.slots import Slots
from holdfast.worker.wear import Wear

_log = logging.getLogger("holdfast.worker")

#: A worker that waits for a bell looks by itself this often: a lost ring costs latency, never work.
SAFETY_POLL_MS = 1_000
#: The longer nothing happens, the less often: ten thousand idle workers look too, and the upkeep repeats lost rings.
LONGEST_POLL_MS = 16_000


@dataclass(frozen=True, slots=True)
class Claims:
    """How this child claims: as whom, for how long, what, and from where."""

    worker_id: str
    lease_ms: int
    order: QueueOrder
    task_types: Mapping[str, TaskType]
    ids: IdSource
    #: An idle child looks at least this often.
    longest_poll_ms: int = LONGEST_POLL_MS
    #: Whether this worker has children for other types as well.
    some_types_only: bool = False


class Fetcher:
    """Keeps the slots filled and the outcomes settled, with one exchange in flight."""

    def __init__(
        self,
        workplace: Workplace,
        slots: Slots,
        claims: Claims,
        clock: Clock,
        *,
        tell: Callable[[FromChild], Awaitable[None]],
        start: Callable[[Run], None],
        wear: Wear | None = None,
    ) -> None:
        self._workplace = workplace
        self._store: Store = workplace.store
        self._slots = slots
        self._claims = claims
        self._types = frozenset(claims.task_types)
        self._clock = clock
        self._tell = tell
        self._start = start
        self._wear = wear
        #: How many tasks were handed back unfinished.
        self.released = 0
        self._claim_id = claims.ids.claim_id()
        self._number = 0
        self._next_key = 1
        self._quiet = False
        self._leaving = False
        #: The last reserve gave less than was asked for.
        self._short = False
        #: Nothing to be had until the bell rings; the bell was listened to before the look that found nothing.
        self._dry = False
        self._bell: asyncio.Task[None] | None = None
        self._rung = False
        self._poll_ms = SAFETY_POLL_MS
        self._answered_at_ms: int | None = None

    @property
    def reserved_at_ms(self) -> int | None:
        """When the last reserve that was answered was sent; now, while there is no room for one."""
        if self._answered_at_ms is not None and self._slots.free <= 0:
            return self._clock.monotonic_ms()
        return self._answered_at_ms

    def quiet(self) -> None:
        """Takes on nothing more; `run` returns when all is settled."""
        self._quiet = True
        self._silence()
        self._slots.wake()

    def leave(self) -> None:
        """Quiet, and what an exchange in flight still brings is handed back."""
        self._leaving = True
        self.quiet()

    def look(self) -> None:
        """There may be something to take on."""
        self._dry = False
        self._slots.wake()

    async def run(self) -> None:
        """Exchanges until it is quiet and everything has been settled."""
        await self._say([], [])  # the supervisor must know the first claim_id before it is used
        while not self._done():
            await self._until_worthwhile()
            if not self._done():
                await self._exchange()

    def _done(self) -> bool:
        return self._quiet and self._slots.idle

    # -- when -----------------------------------------------------------------------------------------------

    def _wanted(self) -> int:
        return 0 if self._quiet else max(0, self._slots.free)

    async def _until_worthwhile(self) -> None:
        wanted = self._wanted()
        if wanted and not self._dry:
            enough = wanted >= self._slots.enough or not self._slots.running
            if enough or not self._slots.ended:
                return
        elif not wanted:
            self._silence()  # a full worker must not catch the ring that is meant for a free one
        await self._slots.until_woken()

    def _listen(self) -> None:
        if self._bell is None:
            self._bell = asyncio.create_task(self._hear())

    def _silence(self) -> None:
        if self._bell is not None:
            self._bell.cancel()
            self._bell = None
            self._dry = False

    async def _hear(self) -> None:
        timeout_ms = round(self._poll_ms * random.uniform(0.9, 1.1))  # noqa: S311  (jitter)
        self._poll_ms = min(2 * self._poll_ms, self._claims.longest_poll_ms)
        try:
            if await self._store.wait(self._claims.order.queues, timeout_ms):
                self._poll_ms = SAFETY_POLL_MS
                self._rung = True
        except Exception as error:  # noqa: BLE001  (only a hint: without it the safety poll has to do)
            _log.debug("waiting for work: %s", error)
            await asyncio.sleep(random.uniform(0.9, 1.1) * SAFETY_POLL_MS / 1000)  # noqa: S311  (jitter)
        self._bell = None
        self._dry = False
        self._slots.wake()

    # -- what -----------------------------------------------------------------------------------------------

    async def _exchange(self) -> None:
        if self._short and self._bell is None and not self._quiet:
            self._listen()  # before looking, or an enqueue between the look and the listening goes unheard
            await asyncio.sleep(0)
        settle, ended = self._slots.take_finished()
        await self._write_down(self._slots.take_last_words())
        await self.look_for_wear(len(ended))
        wanted = self._wanted()
        if self._leaving:
            self.released += sum(change.event is lifecycle.Event.RELEASE for change in settle)
        sent_at_ms = self._clock.monotonic_ms()
        reserved = await self._ask(wanted, settle)
        _warn_of_refusals(settle, reserved.verdicts)
        self._slots.last_batch = len(reserved.tasks)
        if wanted:
            self._answered_at_ms = sent_at_ms
            self._short = len(reserved.tasks) < wanted
            if reserved.tasks:
                self._poll_ms = SAFETY_POLL_MS
            self._dry = self._short and self._bell is not None
            await self._pass_on_the_ring(in_vain=not reserved.tasks)
        await self._take_on(reserved.tasks, sent_at_ms, ended)

    async def _pass_on_the_ring(self, *, in_vain: bool) -> None:
        """A ring wakes one child; if that finds nothing of its own types, another one of this worker may."""
        if self._rung and in_vain and self._claims.some_types_only:
            await self._tell(RungInVain())
        self._rung = False

    async def _ask(self, wanted: int, settle: Sequence[Change]) -> Reserved:
        """One round trip, repeated with the same ids until it is answered."""
        if not wanted:
            verdicts = await persistently(lambda: self._store.apply(settle), "settling") if settle else []
            return Reserved([], verdicts)
        request = Reserve(
            claim_id=self._claim_id,
            worker_id=self._claims.worker_id,
            shares=self._claims.order.shares(wanted),
            max_tasks=wanted,
            lease_ms=self._claims.lease_ms,
            types=self._types,
        )
        # A new claim_id holds nothing; only a repeat has to look for what the call before it got.
        requests = chain([replace(request, fresh=True)], repeat(request))
        return await persistently(lambda: self._store.reserve(next(requests), settle), "reserving")

    async def _take_on(self, tasks: Sequence[Claimed], sent_at_ms: int, ended: list[int]) -> None:
        if not tasks:
            if ended:
                await self._say([], ended)
            return
        self._claim_id = self._claims.ids.claim_id()
        deadline_ms = sent_at_ms + self._claims.lease_ms
        claims = list(enumerate(tasks, self._next_key))
        self._next_key += len(tasks)
        number = await self._say([HeldTask.of(key, task) for key, task in claims], ended)
        if self._leaving or self._clock.monotonic_ms() >= deadline_ms:  # told to go, or an outage used up the lease
            self._slots.hand_back(claims)
            return
        running, task_types, start = self._slots.running, self._claims.task_types, self._start
        workplace, now_ns = self._workplace, monotonic_ns()
        for key, task in claims:
            run = running[key] = Run(key, task, task_types[task.type], number, deadline_ms, workplace, now_ns)
            start(run)

    async def _write_down(self, last_words: list[Hold]) -> None:
        """What the finished runs had to say, before their settlement ends the claims under which they may."""
        if last_words:
            await persistently(lambda: self._store.extend(last_words, self._claims.lease_ms), "writing the last logs")

    async def look_for_wear(self, ended: int = 0) -> None:
        """Asks for a successor when this process has done its share; takes on nothing more when it is full."""
        if self._wear is None:
            return
        if (reason := self._wear.look(ended)) is not None:
            await self._tell(Worn(reason))
        if self._wear.full and not self._quiet:
            self.quiet()

    async def _say(self, add: list[HeldTask], drop: list[int]) -> int:
        self._number += 1
        running = len(self._slots.running) + len(add)
        await self._tell(Held(self._number, add, drop, self._claim_id, running))
        return self._number


def _warn_of_refusals(changes: Sequence[Change], verdicts: Sequence[Verdict]) -> None:
    for change, verdict in zip(changes, verdicts, strict=True):
        if not verdict.applied:
            _log.warning(
                "task %s: %s came too late and was refused: %s (the task is %s)",
                change.task_id,
                change.event.value,
                verdict.reason,
                verdict.state.value if verdict.state else "gone",
            )
