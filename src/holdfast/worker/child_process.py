"""One child, seen from the supervisor: its process, what it holds, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from enum import Enum

from holdfast.clock import SystemClock
from holdfast.core.policy import DEFAULT_POLICY, RunPolicy
from holdfast.worker import messages
from holdfast.worker.channel import SupervisorEnd
from holdfast.worker.memory import OomKills, died_of_memory, resident_bytes
from holdfast.worker.messages import FromChild, HeldTask, ToChild

#: How long a process may take to go after it closed its socket, and how long nothing more may come out of a socket
#: whose process is gone; in several rounds, so that a supervisor that stood still does not take its own silence for it.
LAST_WORDS_S = 1.0
_ROUNDS = 4

_monotonic_ms = SystemClock().monotonic_ms


class Guilt(Enum):
    """Why a task's whole process had to be killed."""

    OVERSTAYED = "overstayed"  # it ran into its hard limit
    UNHEEDING = "unheeding"  # it was cancelled, alone in its process, and went on


class ChildProcess:
    """A child from its start to its end."""

    def __init__(
        self,
        number: int,
        worker_id: str,
        process: asyncio.subprocess.Process,
        channel: SupervisorEnd,
        *,
        alone: bool = False,
    ) -> None:
        self.number = number
        self.worker_id = worker_id
        #: Runs one task at a time.
        self.alone = alone
        self._process = process
        self._channel = channel
        #: How many tasks at once it was told to run.
        self.concurrency = 0
        self.holds: dict[int, HeldTask] = {}  # by key
        #: The number of the last `Held`.
        self.told = 0
        #: The claim_id of the reserve that may be in flight.
        self.asking = ""
        self.running = 0
        #: When it last took something on or ended it, and when the last reserve that was answered was sent.
        self.changed_at_ms = _monotonic_ms()
        self.reserved_at_ms: int | None = None
        #: It left in good order: all that it could settle is settled, and so much was handed back.
        self.drained = False
        self.released = 0
        self.progress: dict[int, bytes] = {}
        self.cancelling: set[int] = set()
        #: By key, when the process is killed if the run has not ended by then; kept by `limits`.
        self.deadlines: dict[int, int] = {}
        #: The tasks for which it was killed.
        self.guilty: dict[int, Guilt] = {}
        #: It was told to go, or sent away: what it leaves is handed back and costs no attempt.
        self.dismissed = False
        #: SIGKILL was sent from here.
        self.killed = False
        #: What it used when last looked at.
        self.memory_bytes = 0
        self._oom_kills: OomKills | None = None
        #: How many messages have come from it.
        self._heard = 0

    @classmethod
    async def start(cls, number: int, start: messages.Start) -> ChildProcess:
        """A new process, told its options; in a session of its own, so that Ctrl-C reaches the supervisor only."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                # Of a file that changes twice within a second, the first version would be kept compiled.
                *(["-B"] if start.options.reload else []),
                "-m",
                "holdfast.worker.child",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        child = cls(number, start.worker_id, process, await SupervisorEnd.open(ours), alone=start.alone)
        child._oom_kills = OomKills.of(process.pid)
        child.concurrency = start.options.concurrency
        child.send(start)
        return child

    @property
    def name(self) -> str:
        """Its place and its incarnation there, as in `2.1`."""
        return self.worker_id.rpartition(":")[2]

    def policy(self, held: HeldTask) -> RunPolicy:
        """The policy of a held task."""
        return held.policy or DEFAULT_POLICY

    def send(self, message: ToChild) -> None:
        """Says something to it, if it still listens."""
        self._channel.send(message)

    @property
    def slots(self) -> int:
        """How many tasks it may run at once."""
        return 1 if self.alone else self.concurrency

    @property
    def serving(self) -> bool:
        """Whether it is about to reserve, or does."""
        return self.told > 0

    def begin(self, concurrency: int) -> None:
        """Lets it reserve, for so many tasks at once."""
        self.send(messages.Begin())
        self.resize(concurrency)

    def resize(self, concurrency: int) -> None:
        """So many tasks at once from now on."""
        if concurrency != self.concurrency and not self.alone:
            self.concurrency = concurrency
            self.send(messages.Resize(concurrency))

    def dismiss(self) -> None:
        """Sends it away: what it leaves behind is handed back."""
        self.dismissed = True
        self.send(messages.Stop())

    def condemn(self, guilty: dict[int, Guilt]) -> None:
        """Kills it because of these tasks; the others are handed back."""
        self.guilty.update(guilty)
        self.deadlines.clear()
        self.dismissed = True
        self.kill()

    def kill(self) -> None:
        """SIGKILL to it and to what it has started, unless it is gone.

        Not by `Process.kill`: that looks first whether the process has ended, and so takes the exit code
        away from the event loop, which then reports 255.
        """
        if self._process.returncode is None:
            self.killed = True
            with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter: a zombie, on macOS
                os.killpg(self._process.pid, signal.SIGKILL)

    async def until_gone(self, heed: Callable[[FromChild], Awaitable[None]]) -> str:
        """Takes in what it says until it is gone, and tells how it ended."""
        reading = asyncio.create_task(self._read(heed))
        exiting = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait((reading, exiting), return_when=asyncio.FIRST_COMPLETED)
            await self._hear_out(reading, exiting)
        finally:
            reading.cancel()
            self.kill()
            await exiting
            self._channel.close()
        if reading.done() and not reading.cancelled() and (error := reading.exception()) is not None:
            raise error
        return self._how_it_ended()

    async def _hear_out(self, reading: asyncio.Task[None], exiting: asyncio.Task[int]) -> None:
        silent = 0
        while silent < _ROUNDS:
            before = self._heard
            _, pending = await asyncio.wait((reading, exiting), timeout=LAST_WORDS_S / _ROUNDS)
            if not pending:
                return
            silent = 0 if self._heard > before else silent + 1

    def look_at_memory(self) -> None:
        """To be called once a second: what it uses, and whom the kernel killed for memory."""
        self.memory_bytes = resident_bytes(self._process.pid)
        if self._oom_kills is not None:
            self._oom_kills.sample()

    async def _read(self, heed: Callable[[FromChild], Awaitable[None]]) -> None:
        async for message in self._channel.messages():
            self._heard += 1
            match message:
                case messages.Held():
                    self._note(message)
                case messages.Progress(latest):
                    self.progress.update(latest)
                case messages.Ended(keys):
                    self._acquit(keys)
                case messages.Reserving(sent_at_ms):
                    self.reserved_at_ms = sent_at_ms
                case messages.Drained(released):
                    self.drained, self.released = True, released
            await heed(message)

    def _note(self, held: messages.Held) -> None:
        for key in held.drop:
            self.holds.pop(key, None)
            self.cancelling.discard(key)
            self.progress.pop(key, None)
            self.deadlines.pop(key, None)
        for task in held.add:
            self.holds[task.key] = task
        self.told = held.number
        self.asking = held.asking
        self.running = held.running
        if held.add or held.drop:
            self.changed_at_ms = _monotonic_ms()

    def _acquit(self, keys: list[int]) -> None:
        """These runs are over: nobody is killed for them, and what was said too late is not held against them."""
        for key in keys:
            self.deadlines.pop(key, None)
            self.guilty.pop(key, None)

    def _how_it_ended(self) -> str:
        code = self._process.returncode or 0
        if code >= 0:
            return f"exited with code {code}"
        if code == -signal.SIGKILL and not self.killed and self._oom_kills is not None and self._oom_kills.lately():
            return died_of_memory(self.memory_bytes)
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
