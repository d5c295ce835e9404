"""All children of a worker: what becomes of what they say, and what is said to all of them."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.clock import Clock
from holdfast.core.durations import format_ms
from holdfast.errors import BadApp, HoldfastError, UsageError
from holdfast.observe.tally import Tally
from holdfast.stores.contract import WorkerOrders, WorkerRecord
from holdfast.version import __version__
from holdfast.worker import messages
from holdfast.worker.child_process import ChildProcess
from holdfast.worker.limits import Limits
from holdfast.worker.memory import resident_bytes
from holdfast.worker.options import WorkerOptions
from holdfast.worker.orders import Concurrency
from holdfast.worker.rate import Rate
from holdfast.worker.seats import Life, Seat

_log = logging.getLogger("holdfast.worker")

#: How often the memory of the children is looked at.
SAMPLE_S = 1.0
#: Children that started together are not replaced together: each some way before its time.
_YOUNGEST = 0.9


class Host(Protocol):
    """What the children need of the worker around them."""

    @property
    def opened(self) -> bool:
        """Whether the app was imported once and its store answers."""
        ...

    async def welcome(self, hello: messages.Hello) -> None:
        """Makes ready for a child that says this, or tells why it cannot be had here."""
        ...

    async def settle(self, child: ChildProcess, how_it_ended: str) -> int:
        """Settles what a child has left behind; how many tasks that were."""
        ...

    def serves(self) -> None:
        """A child reserves."""
        ...

    def nudge(self) -> None:
        """There is progress to record."""
        ...

    def fail(self, error: HoldfastError) -> None:
        """Ends the worker."""
        ...


class Crew:
    """The seats and the children in them."""

    def __init__(
        self,
        options: WorkerOptions,
        worker_id: str,
        clock: Clock,
        host: Host,
        essential: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._options = options
        self._worker_id = worker_id
        self._clock = clock
        self._host = host
        self._essential = essential
        self._children: dict[str, ChildProcess] = {}
        #: No more children are started: the worker is about to end.
        self.closed = False
        self._said: set[str] = set()
        self.seats: list[Seat] = []
        #: One for each seat; done when its last child is gone and settled.
        self.tasks: list[asyncio.Task[None]] = []
        self.limits = Limits(clock, self.children)
        self.concurrency = Concurrency(options.concurrency, self._resize)
        #: When the last reserve that was answered was sent, by any child.
        self.reserved_at_ms: int | None = None
        #: The runs that have ended.
        self.rate = Rate(clock)
        #: What the children have counted.
        self.tally = Tally()
        #: How many unfinished tasks were handed back because the worker stops.
        self.released = 0

    def children(self) -> Collection[ChildProcess]:
        """All that run, also those that are about to leave."""
        return self._children.values()

    def take_seats(self, count: int, *, alone: bool = False) -> None:
        """Adds so many children, each to be followed by another one until the worker stops."""
        for _ in range(count):
            seat = Seat(len(self.seats) + 1, self._live, self._clock, alone=alone, wait_for_change=self._options.reload)
            self.seats.append(seat)
            self.tasks.append(self._essential(seat.keep()))

    def replace_all(self, reason: str) -> None:
        """Every child gets a successor, and goes when that one serves."""
        self._said.clear()
        for seat in self.seats:
            seat.replace(reason)

    def record(self, types: tuple[str, ...], queues: tuple[str, ...]) -> WorkerRecord:
        """What the worker says of itself now."""
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
            status="draining" if self.closed else "running",
        )

    def memory_bytes(self) -> int:
        """What all processes of the worker use."""
        return resident_bytes(os.getpid()) + sum(child.memory_bytes for child in self._children.values())

    def heed(self, orders: WorkerOrders | None) -> None:
        """What an operator wants."""
        self.concurrency.heed(orders)

    def cancel(self, child: ChildProcess, keys: Sequence[int]) -> None:
        """Tells a child that somebody wants these tasks not to go on."""
        child.send(messages.CancelRequested(list(keys)))
        self.limits.give_time_to_heed(child, keys)

    async def keep_an_eye_on_memory(self) -> None:
        """Goes on until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            for child in list(self._children.values()):
                child.look_at_memory()

    # -- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """No more children are started; those that serve go on."""
        self.closed = True
        for seat in self.seats:
            seat.close()

    def quiet(self) -> None:
        """All finish what they have, and leave."""
        for child in self._children.values():
            child.send(messages.Quiet())

    def dismiss(self) -> None:
        """All hand back what they have, and leave."""
        for child in self._children.values():
            child.dismiss()

    def kill(self) -> None:
        """None is left; what they had is handed back."""
        self.limits.stop()
        for child in self._children.values():
            child.dismissed = True
            child.kill()

    # -- one child ------------------------------------------------------------------------------------------

    async def _live(self, seat: Seat, life: Life) -> None:
        """One child from its start until everything that it held is settled."""
        options = msgspec.structs.replace(self._options, concurrency=self.concurrency.current)
        worker_id = f"{self._worker_id}:{life.name}"
        start = messages.Start(options, worker_id, slow_start=life.slow_start, alone=life.alone)
        try:
            child = await ChildProcess.start(life.number, start)
        except OSError as error:
            life.how_it_ended = f"could not be started: {error}"
            return
        life.child = self._children[worker_id] = child
        if self.closed:
            child.kill()
        try:
            life.how_it_ended = await child.until_gone(lambda message: self._heed(seat, life, child, message))
            await self._settle(life, child)
        finally:
            del self._children[worker_id]
            if life.ageing is not None:
                life.ageing.cancel()

    async def _settle(self, life: Life, child: ChildProcess) -> None:
        if not self._host.opened:
            self._give_up(life)
            return
        settled = await self._host.settle(child, life.how_it_ended)
        self.released += child.released
        if child.guilty:
            _log.info("child %s: %d other tasks were handed back", life.name, max(0, settled - len(child.guilty)))
        elif child.dismissed:
            self.released += settled
        elif settled:
            _log.warning("child %s: %d of its tasks were settled as worker_lost", life.name, settled)

    def _give_up(self, life: Life) -> None:
        """The first one has ended before it was ready: so would all others."""
        if not self.closed and not life.unusable:
            self._cannot_be_used(life, BadApp(f"child {life.number} {life.how_it_ended} before it was ready"))

    async def _heed(self, seat: Seat, life: Life, child: ChildProcess, message: messages.FromChild) -> None:
        match message:
            case messages.Held():
                self._take_note(seat, life, child, message)
            case messages.Progress():
                self._host.nudge()
            case messages.Reserving(sent_at_ms):
                self.reserved_at_ms = max(sent_at_ms, self.reserved_at_ms or sent_at_ms)
            case messages.Counted(counts):
                self.tally.add(counts)
            case messages.RungInVain():
                self._wake_the_others(child)
            case messages.Hello():
                await self._welcome(life, child, message)
            case messages.ImportFailed(line):
                self._cannot_be_used(life, BadApp(line))
            case messages.Worn(reason):
                seat.wear_out(life, reason)
            case messages.Broken(line):
                _log.error("child %s: %s", life.name, line)

    async def _welcome(self, life: Life, child: ChildProcess, hello: messages.Hello) -> None:
        try:
            await self._host.welcome(hello)
        except HoldfastError as error:
            self._cannot_be_used(life, error)
            child.kill()
            return
        child.begin(self.concurrency.current)
        if hello.alone and not self.closed and not any(seat.alone for seat in self.seats):
            self.take_seats(self._options.cpu_processes, alone=True)

    def _take_note(self, seat: Seat, life: Life, child: ChildProcess, held: messages.Held) -> None:
        if held.number == 1:  # it is about to reserve
            self._host.serves()
            self._count_its_age(seat, life)
            seat.tell()
        if held.add:
            self.limits.watch(child, held.add)
        if held.drop:
            self.rate.count(len(held.drop))

    def _count_its_age(self, seat: Seat, life: Life) -> None:
        if self._options.max_age_ms is not None:
            age_s = self._options.max_age_ms / 1000 * random.uniform(_YOUNGEST, 1)  # noqa: S311  (jitter)
            reason = f"has served for about {format_ms(self._options.max_age_ms)}"
            life.ageing = asyncio.get_running_loop().call_later(age_s, seat.wear_out, life, reason)

    def _cannot_be_used(self, life: Life, error: HoldfastError) -> None:
        """The first one ends the worker; later, and where the source may change, there is another chance."""
        life.unusable = True
        may_be_mended = self._options.reload and isinstance(error, UsageError)
        if not self._host.opened and not may_be_mended:
            self._host.fail(error)
        elif str(error) not in self._said:
            self._said.add(str(error))
            _log.error("%s%s", error, "; waiting for a change" if self._options.reload else "")

    def _wake_the_others(self, child: ChildProcess) -> None:
        """A ring that one kind of child could not use is passed on to the other kind."""
        for other in self._children.values():
            if other.serving and other.alone is not child.alone:
                other.send(messages.Look())

    def _resize(self, concurrency: int) -> None:
        for child in self._children.values():
            if child.serving:  # the others are told when they begin
                child.resize(concurrency)
