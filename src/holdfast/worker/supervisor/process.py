"""One child, seen from the supervisor: its process, its claims, its hard time limits, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Sequence
from enum import Enum

from holdfast.clock import Clock, SystemClock
from holdfast.core.durations import format_ms
from holdfast.core.retry import DEFAULT_POLICY, RunPolicy
from holdfast.worker import protocol
from holdfast.worker.orphans import end_group, kill_group
from holdfast.worker.protocol import FromChild, HeldTask, SupervisorEnd, ToChild
from holdfast.worker.recycle import OomKills, died_of_memory, resident_bytes

_log = logging.getLogger("holdfast.worker")

#: How long a process may take to exit after it closed its socket, and how long the socket of an exited process is read
#: without a new message; in several rounds, so that a supervisor that stood still does not count its own pause.
FINAL_MESSAGES_S = 1.0
_ROUNDS = 4
#: How long a task that is alone in its process may go on after its cancellation.
CANCEL_GRACE_MS = 5_000
#: Two looks are at least this far apart, however close the deadlines are.
_CLOSEST_MS = 20

_monotonic_ms = SystemClock().monotonic_ms


class KillReason(Enum):
    """Why a task's whole process had to be killed."""

    HARD_LIMIT = "hard limit"  # it ran longer than its hard limit
    IGNORED_CANCEL = "ignored cancel"  # it was cancelled, alone in its process, and went on


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
        #: It drained: all that it could settle is settled, and `released` tasks were released.
        self.drained = False
        self.released = 0
        self.progress: dict[int, bytes] = {}
        self.cancelling: set[int] = set()
        #: By key, when the process is killed if the run has not ended by then; kept by `HardLimits`.
        self.deadlines: dict[int, int] = {}
        #: By key, the tasks for which it was killed.
        self.kill_reasons: dict[int, KillReason] = {}
        #: It was told to stop, or killed on purpose: its unfinished tasks are released and use up no attempt.
        self.dismissed = False
        #: SIGKILL was sent from here.
        self.killed = False
        #: What it used at the last sample.
        self.memory_bytes = 0
        self._oom_kills: OomKills | None = None
        #: How many messages it has sent.
        self._received = 0

    @classmethod
    async def start(cls, number: int, start: protocol.Start) -> ChildProcess:
        """A new process, told its options; in a session of its own, so that Ctrl-C reaches the supervisor only."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                # Of a file that changes twice within a second, the first version would be kept compiled.
                *(["-B"] if start.options.reload else []),
                "-m",
                "holdfast.worker.child.main",
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
        """Its slot and its incarnation there, as in `2.1`."""
        return self.worker_id.rpartition(":")[2]

    def policy(self, held: HeldTask) -> RunPolicy:
        """The policy of a held task."""
        return held.policy or DEFAULT_POLICY

    def send(self, message: ToChild) -> None:
        """Sends it a message, if it still reads."""
        self._channel.send(message)

    @property
    def slots(self) -> int:
        """How many tasks it may run at once."""
        return 1 if self.alone else self.concurrency

    @property
    def serving(self) -> bool:
        """Whether it is about to reserve, or does."""
        return self.told > 0

    def begin(self, concurrency: int, *, paused: bool = False) -> None:
        """Lets it reserve, for up to this many tasks at once."""
        self.send(protocol.Begin(paused))
        self.resize(concurrency)

    def resize(self, concurrency: int) -> None:
        """Lets it run this many tasks at once from now on."""
        if concurrency != self.concurrency and not self.alone:
            self.concurrency = concurrency
            self.send(protocol.Resize(concurrency))

    def dismiss(self) -> None:
        """Tells it to stop; its unfinished tasks are released."""
        self.dismissed = True
        self.send(protocol.Stop())

    def kill_because_of(self, reasons: dict[int, KillReason]) -> None:
        """Kills it because of these tasks; its other tasks are released."""
        self.kill_reasons.update(reasons)
        self.deadlines.clear()
        self.dismissed = True
        self.kill()

    def kill(self) -> None:
        """Sends SIGKILL to it and to the processes that it has started, unless it is gone.

        Not by `Process.kill`: that looks first whether the process has ended, and so takes the exit code
        away from the event loop, which then reports 255.
        """
        if self._process.returncode is None:
            self.killed = True
            with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter: a zombie, on macOS
                os.killpg(self._process.pid, signal.SIGKILL)

    async def until_gone(self, handle: Callable[[FromChild], None]) -> str:
        """Handles its messages until it and all that its tasks have started are gone, and tells how it ended."""
        reading = asyncio.create_task(self._read(handle))
        exiting = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait((reading, exiting), return_when=asyncio.FIRST_COMPLETED)
            if exiting.done():
                kill_group(self._process.pid)  # what was forked has its end of the socket too
            await self._read_final_messages(reading, exiting)
        finally:
            reading.cancel()
            self.kill()
            await exiting
            await end_group(self._process.pid)
            self._channel.close()
        if reading.done() and not reading.cancelled() and (error := reading.exception()) is not None:
            raise error
        return self._how_it_ended()

    async def _read_final_messages(self, reading: asyncio.Task[None], exiting: asyncio.Task[int]) -> None:
        silent = 0
        while silent < _ROUNDS:
            before = self._received
            _, pending = await asyncio.wait((reading, exiting), timeout=FINAL_MESSAGES_S / _ROUNDS)
            if not pending:
                return
            silent = 0 if self._received > before else silent + 1

    def sample_memory(self) -> None:
        """To be called once a second: notes what it uses, and whether the kernel killed a process for memory."""
        self.memory_bytes = resident_bytes(self._process.pid)
        if self._oom_kills is not None:
            self._oom_kills.sample()

    async def _read(self, handle: Callable[[FromChild], None]) -> None:
        async for message in self._channel.messages():
            self._received += 1
            match message:
                case protocol.Held():
                    self._note(message)
                case protocol.ProgressReport(latest):
                    self.progress.update(latest)
                case protocol.Ended(keys):
                    self._clear(keys)
                case protocol.Reserving(sent_at_ms):
                    self.reserved_at_ms = sent_at_ms
                case protocol.Drained(released):
                    self.drained, self.released = True, released
            handle(message)

    def _note(self, held: protocol.Held) -> None:
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

    def _clear(self, keys: list[int]) -> None:
        """Clears the deadlines and kill reasons of finished runs, also of those whose end was read after the kill."""
        for key in keys:
            self.deadlines.pop(key, None)
            self.kill_reasons.pop(key, None)

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


# -- hard time limits ------------------------------------------------------------------------------------------


class HardLimits:
    """Kills the children of tasks that run too long; one timer for all, and none while no task has a limit.

    The timer is set to the soonest deadline that there was; a run that has ended by then costs one extra look, and
    nothing while it runs.
    """

    def __init__(self, clock: Clock, children: Callable[[], Collection[ChildProcess]]) -> None:
        self._clock = clock
        self._children = children
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at_ms = 0

    def watch(self, child: ChildProcess, tasks: Sequence[HeldTask]) -> None:
        """From now on counts the time of those of these tasks that have a hard limit."""
        limited = [(task.key, limit) for task in tasks if (limit := task.hard_timeout_ms) is not None]
        if limited:
            now_ms = self._clock.monotonic_ms()
            child.deadlines.update((key, now_ms + limit) for key, limit in limited)
            self._wake_at(now_ms + min(limit for _, limit in limited))

    def limit_cancelled(self, child: ChildProcess, cancelled: Sequence[int]) -> None:
        """A cancelled task that is alone in its process has to end soon: killing it harms no other task."""
        held = [key for key in cancelled if key in child.holds]
        if child.alone and held:
            until_ms = self._clock.monotonic_ms() + CANCEL_GRACE_MS
            child.deadlines.update((key, min(until_ms, child.deadlines.get(key, until_ms))) for key in held)
            self._wake_at(until_ms)

    def stop(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _wake_at(self, moment_ms: int) -> None:
        if self._timer is not None and self._fires_at_ms <= moment_ms:
            return
        self.stop()
        self._fires_at_ms = moment_ms
        wait_ms = max(_CLOSEST_MS, moment_ms - self._clock.monotonic_ms())
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        for child in list(self._children()):
            expired = [key for key, deadline_ms in child.deadlines.items() if deadline_ms <= now_ms]
            if expired:
                self._kill(child, expired)
        left = [deadline_ms for child in self._children() for deadline_ms in child.deadlines.values()]
        if left:
            self._wake_at(min(left))

    def _kill(self, child: ChildProcess, expired: list[int]) -> None:
        reasons = {
            key: KillReason.IGNORED_CANCEL if key in child.cancelling else KillReason.HARD_LIMIT for key in expired
        }
        for key, reason in reasons.items():
            if (held := child.holds.get(key)) is not None:
                _log.error("child %s is killed: task %s %s", child.name, held.task_id, describe_kill(reason, held))
        child.kill_because_of(reasons)


def describe_kill(reason: KillReason, held: HeldTask) -> str:
    """For logs and for the task's history."""
    if reason is KillReason.IGNORED_CANCEL:
        return "went on after its cancellation"
    return f"ran longer than its hard limit of {format_ms(held.hard_timeout_ms or 0)}"
