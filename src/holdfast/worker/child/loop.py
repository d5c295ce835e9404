"""The exchange with the store: settle what has finished, take on what there is room for, in one call."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from time import monotonic_ns
from typing import Any

from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.core import lifecycle
from holdfast.core.fairness import QueueOrder
from holdfast.core.ids import IdSource
from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.names import reason_of
from holdfast.core.task import Claimed, Failure, Hold
from holdfast.errors import StoreCorrupt, StoreTooNew
from holdfast.producer.task_type import TaskType
from holdfast.stores.contract import MAX_BATCH, Reserve, Reserved, Store
from holdfast.worker.backoff import persistently
from holdfast.worker.child.execute import unexplained
from holdfast.worker.child.failure import name_of
from holdfast.worker.child.run import Run, RunContext
from holdfast.worker.child.slots import MAX_SETTLE_BYTES, End, Slots
from holdfast.worker.loading import one_line
from holdfast.worker.protocol import FromChild, Held, HeldTask, Recycle, WakeupUnused
from holdfast.worker.recycle import RecycleLimits

_log = logging.getLogger("holdfast.worker")

#: A worker that waits for a wake-up looks by itself this often: a lost wake-up costs latency, never work.
SAFETY_POLL_MS = 1_000
#: The longer nothing happens, the less often: ten thousand idle workers look too, and maintenance repeats wake-ups.
LONGEST_POLL_MS = 16_000
#: Errors that say nothing about what was sent: the store can take nothing at all.
_FATAL = (StoreCorrupt, StoreTooNew)


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    """How this child claims: as whom, for how long, what, and from where."""

    worker_id: str
    lease_ms: int
    order: QueueOrder
    task_types: Mapping[str, TaskType[..., Any]]
    ids: IdSource
    #: An idle child looks at least this often.
    longest_poll_ms: int = LONGEST_POLL_MS
    #: Whether this worker has children for other types as well.
    some_types_only: bool = False


class Fetcher:
    """Keeps the slots filled and the outcomes settled, with one exchange in flight."""

    def __init__(
        self,
        context: RunContext,
        slots: Slots,
        claims: ClaimOptions,
        clock: Clock,
        *,
        send: Callable[[FromChild], Awaitable[None]],
        start: Callable[[Run], None],
        recycle: RecycleLimits | None = None,
        log_starts: Callable[[Sequence[Claimed]], int] | None = None,
    ) -> None:
        self._context = context
        self._store: Store = context.store
        self._slots = slots
        self._claims = claims
        self._types = frozenset(claims.task_types)
        self._clock = clock
        self._send = send
        self._start = start
        self._recycle = recycle
        #: Logs the start of the first ones of these, and gives how many it has logged.
        self._log_starts = log_starts
        #: How many tasks were released unfinished.
        self.released = 0
        self._claim_id = claims.ids.claim_id()
        self._number = 0
        self._next_key = 1
        self._quiet = False
        self._paused = False
        self._leaving = False
        #: The last reserve gave less than was asked for, and nothing stayed behind for want of room in its answer.
        self._short = False
        #: Nothing to reserve until a wake-up; the wait for it began before the look that found nothing.
        self._dry = False
        self._waiting: asyncio.Task[None] | None = None
        self._woken = False
        self._poll_ms = SAFETY_POLL_MS
        self._answered_at_ms: int | None = None

    @property
    def reserved_at_ms(self) -> int | None:
        """When the last reserve that was answered was sent; now, while there is no room for one."""
        if self._answered_at_ms is not None and (self._paused or self._slots.free <= 0):
            return self._clock.monotonic_ms()
        return self._answered_at_ms

    def quiet(self) -> None:
        """Takes on nothing more; `run` returns when all is settled."""
        self._quiet = True
        self._stop_waiting()
        self._slots.wake()

    def pause(self, paused: bool) -> None:
        """Takes on nothing more until it is told to again; what runs goes on and is settled."""
        self._paused = paused
        if paused:
            self._stop_waiting()
        self.look()

    def leave(self) -> None:
        """Quiet, and what an exchange in flight still brings is released."""
        self._leaving = True
        self.quiet()

    def look(self) -> None:
        """There may be something to take on."""
        self._dry = False
        self._slots.wake()

    async def run(self) -> None:
        """Exchanges until it is quiet and everything has been settled."""
        await self._report([], [])  # the supervisor must know the first claim_id before it is used
        while not self._done():
            await self._until_worthwhile()
            if not self._done():
                await self._exchange()

    async def run_ready(self) -> None:
        """Runs and settles what is ready now, and waits for nothing more: for tests."""
        await self._exchange()
        while not self._slots.idle:
            await self._slots.until_woken()
            await self._exchange()

    def _done(self) -> bool:
        return self._quiet and self._slots.idle

    # -- when -----------------------------------------------------------------------------------------------

    def _wanted(self) -> int:
        return 0 if self._quiet or self._paused else max(0, self._slots.free)

    async def _until_worthwhile(self) -> None:
        wanted = self._wanted()
        if wanted and not self._dry:
            enough = wanted >= self._slots.enough or not self._slots.running
            if enough or not self._slots.ended:
                return
        elif not wanted:
            self._stop_waiting()  # a full worker must not catch the wake-up that is meant for a free one
        await self._slots.until_woken()

    def _begin_waiting(self) -> None:
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._wait())

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
            self._dry = False

    async def _wait(self) -> None:
        timeout_ms = round(self._poll_ms * random.uniform(0.9, 1.1))  # noqa: S311  (jitter)
        self._poll_ms = min(2 * self._poll_ms, self._claims.longest_poll_ms)
        try:
            if await self._store.wait(self._claims.order.queues, timeout_ms):
                self._poll_ms = SAFETY_POLL_MS
                self._woken = True
        except Exception as error:  # noqa: BLE001  (only a hint: without it the safety poll has to do)
            _log.debug("waiting for work: %s", error)
            await asyncio.sleep(random.uniform(0.9, 1.1) * SAFETY_POLL_MS / 1000)  # noqa: S311  (jitter)
        self._waiting = None
        self._dry = False
        self._slots.wake()

    # -- what -----------------------------------------------------------------------------------------------

    async def _exchange(self) -> None:
        if self._short and self._waiting is None and not self._quiet and not self._paused:
            self._begin_waiting()  # before looking, or an enqueue between the look and the wait goes unnoticed
            await asyncio.sleep(0)
        ends = self._slots.take_ended()
        await self._write_final_logs(self._slots.take_final_logs())
        await self.check_recycling(len(ends))
        wanted = self._wanted()
        settle = [change for _, _, change in ends if change is not None]
        if self._leaving:
            self.released += sum(change.event is lifecycle.Event.RELEASE for change in settle)
        sent_at_ms = self._clock.monotonic_ms()
        reserved = await self._ask(wanted, ends, settle)
        _warn_of_refusals(settle, reserved.verdicts)
        self._slots.last_batch = len(reserved.tasks)
        if wanted:
            self._answered_at_ms = sent_at_ms
            self._short = len(reserved.tasks) < wanted and not reserved.cut
            if reserved.tasks:
                self._poll_ms = SAFETY_POLL_MS
            self._dry = self._short and self._waiting is not None
            await self._pass_on_wakeup(unused=not reserved.tasks)
        await self._take_on(reserved.tasks, sent_at_ms, [key for key, _, _ in ends])

    async def _pass_on_wakeup(self, *, unused: bool) -> None:
        """A wake-up reaches one child; if that finds nothing of its own types, another one of this worker may."""
        if self._woken and unused and self._claims.some_types_only:
            await self._send(WakeupUnused())
        self._woken = False

    async def _ask(self, wanted: int, ends: Sequence[End], settle: Sequence[Change]) -> Reserved:
        """One round trip, repeated with the same ids until it is answered."""
        if not wanted:
            return Reserved([], await self._settled(ends, settle))
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
        try:
            return await persistently(lambda: self._store.reserve(next(requests), settle), "reserving")
        except Exception as error:
            if not settle or isinstance(error, _FATAL):
                raise
        verdicts = await self._settled_alone(ends)
        reserved = await persistently(lambda: self._store.reserve(next(requests)), "reserving")
        return replace(reserved, verdicts=verdicts)

    async def _settled(self, ends: Sequence[End], settle: Sequence[Change]) -> list[Verdict]:
        if not settle:
            return []
        try:
            return await persistently(lambda: self._store.apply(settle), "settling")
        except _FATAL:
            raise
        except Exception:  # noqa: BLE001  (each is told why, if it is its own fault)
            return await self._settled_alone(ends)

    async def _settled_alone(self, ends: Sequence[End]) -> list[Verdict]:
        """After the store could not take them together: one by one, so that a bad one does not take others along."""
        verdicts: list[Verdict] = []
        for task, change in [(task, change) for _, task, change in ends if change is not None]:
            try:
                verdicts += await persistently(partial(self._store.apply, [change]), "settling")
            except _FATAL:
                raise
            except Exception as error:  # noqa: BLE001  (becomes the failure of this task)
                _log.error("task %s: its end cannot be stored: %s", task.task_id, one_line(error))
                verdicts.append(await self._settled_as_failed(task, error))
        return verdicts

    async def _settled_as_failed(self, task: Claimed, error: Exception) -> Verdict:
        failure = Failure(name_of(error), reason_of(f"the end of this run cannot be stored: {one_line(error)}"))
        change = lifecycle.fail(
            *(task.task_id, task.token, failure),
            attempt=task.attempt,
            policy=task.policy,
            retryable=False,
            random_unit=0.0,
        )
        try:
            (verdict,) = await persistently(partial(self._store.apply, [change]), "settling")
        except _FATAL:
            raise
        except Exception as second:  # noqa: BLE001  (its lease runs out, which uses up an attempt)
            return Verdict(False, reason=one_line(second))
        return verdict

    async def _take_on(self, tasks: Sequence[Claimed], sent_at_ms: int, ended: list[int]) -> None:
        if not tasks:
            if ended:
                await self._report([], ended)
            return
        self._claim_id = self._claims.ids.claim_id()
        deadline_ms = sent_at_ms + self._claims.lease_ms
        claims = list(enumerate(tasks, self._next_key))
        self._next_key += len(tasks)
        number = await self._report([HeldTask.of(key, task) for key, task in claims], ended)
        if self._leaving or self._clock.monotonic_ms() >= deadline_ms:  # it is leaving, or an outage used up the lease
            self._slots.release(claims)
            return
        running, task_types, start = self._slots.running, self._claims.task_types, self._start
        context, now_ns = self._context, monotonic_ns()
        logged = 0 if self._log_starts is None else self._log_starts(tasks)
        for key, task in claims:
            run = running[key] = Run(key, task, task_types[task.type], number, deadline_ms, context, now_ns)
            try:
                start(run)
            except Exception as error:  # noqa: BLE001  (no thread to be had: the others may still find one)
                self._slots.finish(run, unexplained(run, error))
        for key, _ in claims[:logged]:
            if key in running:
                running[key].logged = True

    async def _write_final_logs(self, final_logs: list[Hold]) -> None:
        """Writes the reports of finished runs, before their settlement ends the claims under which they may."""
        while final_logs:
            some, final_logs = _one_call(final_logs)
            await persistently(partial(self._store.extend, some, self._claims.lease_ms), "writing the final logs")

    async def check_recycling(self, ended: int = 0) -> None:
        """Asks for a successor when this process has done its share; takes on nothing more when it is full."""
        if self._recycle is None:
            return
        if (reason := self._recycle.check(ended)) is not None:
            await self._send(Recycle(reason))
        if self._recycle.full and not self._quiet:
            self.quiet()

    async def _report(self, add: list[HeldTask], drop: list[int]) -> int:
        self._number += 1
        running = len(self._slots.running) + len(add)
        await self._send(Held(self._number, add, drop, self._claim_id, running))
        return self._number


def _one_call(holds: list[Hold]) -> tuple[list[Hold], list[Hold]]:
    """As many of these as one call may have, in number and in bytes, and the rest."""
    size = 0
    for count, hold in enumerate(holds):
        size += len(hold.progress or b"")
        if count and (count == MAX_BATCH or size > MAX_SETTLE_BYTES):
            return holds[:count], holds[count:]
    return holds, []


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
