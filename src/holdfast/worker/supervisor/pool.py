"""The pool of child processes: starts and replaces them, handles their messages, reports events."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from holdfast.clock import Clock
from holdfast.core.durations import format_ms
from holdfast.errors import BadApp, HoldfastError
from holdfast.observe.metrics import Tally
from holdfast.stores.contract import WorkerOrders, WorkerRecord
from holdfast.version import __version__
from holdfast.worker import protocol
from holdfast.worker.options import Concurrency, WorkerOptions
from holdfast.worker.recycle import resident_bytes
from holdfast.worker.supervisor.process import ChildProcess, HardLimits
from holdfast.worker.supervisor.slot import ChildSlot, Incarnation

_log = logging.getLogger("holdfast.worker")

#: How often the memory of the children is sampled.
SAMPLE_S = 1.0
#: Children that started together are not recycled together: each at a random share of its maximum age from here to 1.
_YOUNGEST = 0.9
#: The window in which ended runs are counted.
_WINDOW_S = 60


# -- events --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChildReady:
    """A child has imported the app and waits for `ChildPool.begin` or `ChildPool.refuse`."""

    incarnation: Incarnation
    child: ChildProcess
    hello: protocol.Hello


@dataclass(frozen=True, slots=True)
class ChildServing:
    """A child is about to reserve."""


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """A child has progress to write to the store."""


@dataclass(frozen=True, slots=True)
class ChildUnusable:
    """The app cannot be imported, or cannot be used."""

    error: HoldfastError


@dataclass(frozen=True, slots=True)
class ChildGone:
    """A child has exited; its slot is empty until `settled` has the number of its claims that were settled."""

    incarnation: Incarnation
    child: ChildProcess
    settled: asyncio.Future[int]


@dataclass(frozen=True, slots=True)
class SlotFailed:
    """A slot could not go on; it is closed."""

    error: Exception


class StopOrdered:
    """An operator wants the worker to stop."""


PoolEvent = ChildReady | ChildServing | ProgressReported | ChildUnusable | ChildGone | SlotFailed | StopOrdered


class ChildPool:
    """The slots and the children in them; `async for` gives the events that concern the whole worker."""

    def __init__(self, options: WorkerOptions, worker_id: str, clock: Clock) -> None:
        self._options = options
        self._worker_id = worker_id
        self._clock = clock
        self._events: asyncio.Queue[PoolEvent] = asyncio.Queue()
        self._children: dict[str, ChildProcess] = {}
        #: No more children are started: the worker is about to end.
        self.closed = False
        #: No more tasks are claimed, by an operator's order.
        self.drained = False
        self.slots: list[ChildSlot] = []
        #: One for each slot; done when its last child is gone and settled.
        self.tasks: list[asyncio.Task[None]] = []
        self.limits = HardLimits(clock, self.children)
        self.concurrency = Concurrency(options.concurrency, self._resize)
        #: When the last reserve that was answered was sent, by any child.
        self.reserved_at_ms: int | None = None
        #: The runs that have ended.
        self.rate = EventRate(clock)
        #: The metrics that the children have counted.
        self.tally = Tally()
        #: How many unfinished tasks were released because the worker stops.
        self.released = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PoolEvent:
        return await self._events.get()

    def children(self) -> Collection[ChildProcess]:
        """All that run, also those that are about to leave."""
        return self._children.values()

    def add_slots(self, count: int, *, alone: bool = False) -> None:
        """Adds slots, each with a child that is followed by another one until the pool is closed; none if it is."""
        for _ in range(0 if self.closed else count):
            slot = ChildSlot(len(self.slots) + 1, self._clock, alone=alone, wait_for_change=self._options.reload)
            self.slots.append(slot)
            self.tasks.append(asyncio.create_task(self._fill(slot)))

    def begin(self, ready: ChildReady) -> None:
        """Lets a child reserve; the first one whose app has types that run alone brings the slots for those."""
        ready.child.begin(self.concurrency.current, paused=self.drained)
        if ready.hello.alone and not self.closed and not any(slot.alone for slot in self.slots):
            self.add_slots(self._options.cpu_processes, alone=True)

    def apply(self, orders: WorkerOrders | None) -> None:
        """Applies what the store has for this worker; it comes with every heartbeat, and counts when it is new."""
        self.concurrency.apply(orders)
        mode = orders.mode if orders else "run"
        if mode == "stop" and not self.closed:
            self._report(StopOrdered())
        drained = mode != "run"
        if drained is not self.drained:
            self.drained = drained
            _log.info("on request: %s", "claiming no more tasks" if drained else "claiming tasks again")
            for child in self._children.values():
                if child.serving:  # the others are told when they begin
                    child.send(protocol.Pause(drained))

    def refuse(self, ready: ChildReady) -> None:
        """Kills a child whose app cannot be used."""
        ready.incarnation.unusable = True
        ready.child.kill()

    def replace_all(self, reason: str) -> None:
        """Every child gets a successor, and leaves when that one serves."""
        for slot in self.slots:
            slot.replace(reason)

    def record(self, types: tuple[str, ...], queues: tuple[str, ...]) -> WorkerRecord:
        """The worker's own record, as of now."""
        return WorkerRecord(
            worker_id=self._worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            queues=queues,
            types=types,
            processes=self._options.processes,
            concurrency=self.concurrency.current,
            running=sum(child.running for child in self._children.values()),
            memory_bytes=self.memory_bytes(),
            ended_last_minute=self.rate.last_minute(),
            status="draining" if self.closed or self.drained else "running",
        )

    def memory_bytes(self) -> int:
        """What all processes of the worker use."""
        return resident_bytes(os.getpid()) + sum(child.memory_bytes for child in self._children.values())

    def cancel(self, child: ChildProcess, keys: Sequence[int]) -> None:
        """Tells a child that a cancellation was requested for these tasks."""
        child.send(protocol.CancelRequested(list(keys)))
        self.limits.limit_cancelled(child, keys)

    async def sample_memory(self) -> None:
        """Goes on until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            for child in list(self._children.values()):
                child.sample_memory()

    # -- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Starts no more children; those that serve go on."""
        self.closed = True
        for slot in self.slots:
            slot.close()

    def quiet(self) -> None:
        """Lets all children finish their tasks and leave."""
        for child in self._children.values():
            child.send(protocol.Quiet())

    def dismiss(self) -> None:
        """Tells all children to release their tasks and leave."""
        for child in self._children.values():
            child.dismiss()

    def kill(self) -> None:
        """Kills all children; their tasks are released."""
        self.limits.stop()
        for child in self._children.values():
            child.dismissed = True
            child.kill()

    # -- one slot -------------------------------------------------------------------------------------------

    async def _fill(self, slot: ChildSlot) -> None:
        """Runs the children of a slot until it is closed and all of them are gone and settled."""
        running: set[asyncio.Task[None]] = set()
        try:
            async for incarnation in slot:
                task = asyncio.create_task(self._run(slot, incarnation))
                running.add(task)
                task.add_done_callback(running.discard)
        except Exception as error:  # noqa: BLE001  (ends the worker: the supervisor decides how)
            self._report(SlotFailed(error))
        finally:
            tasks = list(running)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, slot: ChildSlot, incarnation: Incarnation) -> None:
        try:
            await self._live(slot, incarnation)
        except Exception as error:  # noqa: BLE001  (ends the worker: the supervisor decides how)
            slot.close()
            self._report(SlotFailed(error))
        finally:
            slot.ended(incarnation)

    async def _live(self, slot: ChildSlot, incarnation: Incarnation) -> None:
        """One child from its start until everything that it held is settled."""
        options = msgspec.structs.replace(self._options, concurrency=self.concurrency.current)
        worker_id = f"{self._worker_id}:{incarnation.name}"
        start = protocol.Start(
            options, worker_id, slow_start=incarnation.slow_start, alone=incarnation.alone, paused=self.drained
        )
        try:
            child = await ChildProcess.start(incarnation.number, start)
        except OSError as error:
            incarnation.how_it_ended = f"could not be started: {error}"
            return
        incarnation.child = self._children[worker_id] = child
        if self.closed:
            child.kill()
        try:
            incarnation.how_it_ended = await child.until_gone(
                lambda message: self._handle(slot, incarnation, child, message)
            )
            await self._until_settled(incarnation, child)
        finally:
            del self._children[worker_id]
            if incarnation.ageing is not None:
                incarnation.ageing.cancel()

    async def _until_settled(self, incarnation: Incarnation, child: ChildProcess) -> None:
        gone = ChildGone(incarnation, child, asyncio.get_running_loop().create_future())
        self._report(gone)
        settled = await gone.settled
        self.released += child.released
        if child.kill_reasons:
            others = max(0, settled - len(child.kill_reasons))
            noun = "task was" if others == 1 else "tasks were"
            _log.info("child %s: %d other %s released", incarnation.name, others, noun)
        elif child.dismissed:
            self.released += settled
        elif settled:
            verb = "was" if settled == 1 else "were"
            _log.warning("child %s: %d of its tasks %s settled as worker_lost", incarnation.name, settled, verb)

    # -- messages -------------------------------------------------------------------------------------------

    def _report(self, event: PoolEvent) -> None:
        self._events.put_nowait(event)

    def _handle(
        self, slot: ChildSlot, incarnation: Incarnation, child: ChildProcess, message: protocol.FromChild
    ) -> None:
        match message:
            case protocol.Held():
                self._take_note(slot, incarnation, child, message)
            case protocol.ProgressReport():
                self._report(ProgressReported())
            case protocol.Reserving(sent_at_ms):
                self.reserved_at_ms = max(sent_at_ms, self.reserved_at_ms or sent_at_ms)
            case protocol.Counted(counts):
                self.tally.add(counts)
            case protocol.WakeupUnused():
                self._wake_the_others(child)
            case protocol.Hello():
                self._report(ChildReady(incarnation, child, message))
            case protocol.ImportFailed(line):
                incarnation.unusable = True
                self._report(ChildUnusable(BadApp(line)))
            case protocol.Recycle(reason):
                slot.recycle(incarnation, reason)
            case protocol.Broken(line):
                _log.error("child %s: %s", incarnation.name, line)

    def _take_note(self, slot: ChildSlot, incarnation: Incarnation, child: ChildProcess, held: protocol.Held) -> None:
        if held.number == 1:  # it is about to reserve
            self._report(ChildServing())
            self._limit_age(slot, incarnation)
            slot.notify()
        if held.add:
            self.limits.watch(child, held.add)
        if held.drop:
            self.rate.count(len(held.drop))

    def _limit_age(self, slot: ChildSlot, incarnation: Incarnation) -> None:
        if self._options.max_age_ms is not None:
            age_s = self._options.max_age_ms / 1000 * random.uniform(_YOUNGEST, 1)  # noqa: S311  (jitter)
            reason = f"has served for about {format_ms(self._options.max_age_ms)}"
            incarnation.ageing = asyncio.get_running_loop().call_later(age_s, slot.recycle, incarnation, reason)

    def _wake_the_others(self, child: ChildProcess) -> None:
        """A wake-up that one kind of child could not use is passed on to the other kind."""
        for other in self._children.values():
            if other.serving and other.alone is not child.alone:
                other.send(protocol.Look())

    def _resize(self, concurrency: int) -> None:
        for child in self._children.values():
            if child.serving:  # the others are told when they begin
                child.resize(concurrency)


class EventRate:
    """Events of the last minute, counted by the second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: deque[list[int]] = deque()  # second, count

    def count(self, number: int) -> None:
        """Counts this many more."""
        second = self._clock.monotonic_ms() // 1000
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1][1] += number
        else:
            self._forget(second)
            self._seconds.append([second, number])

    def last_minute(self) -> int:
        """How many were counted in the last 60 s."""
        self._forget(self._clock.monotonic_ms() // 1000)
        return sum(number for _, number in self._seconds)

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - _WINDOW_S:
            self._seconds.popleft()
