"""One child, seen from the supervisor: its process, what it holds, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable

from holdfast.core.retry import DEFAULT_POLICY, RetryPolicy
from holdfast.worker import messages
from holdfast.worker.channel import SupervisorEnd
from holdfast.worker.messages import FromChild, HeldTask, ToChild

#: How long a process may take to go after it closed its socket, and a socket after its process is gone.
LAST_WORDS_S = 1.0


class ChildProcess:
    """A child from its start to its end."""

    def __init__(
        self, number: int, worker_id: str, process: asyncio.subprocess.Process, channel: SupervisorEnd
    ) -> None:
        self.number = number
        self.worker_id = worker_id
        self._process = process
        self._channel = channel
        self.holds: dict[int, HeldTask] = {}  # by key
        #: The number of the last `Held`.
        self.told = 0
        #: The claim_id of the reserve that may be in flight.
        self.asking = ""
        self.running = 0
        self.released = 0
        self.progress: dict[int, bytes] = {}
        self.cancelling: set[int] = set()
        #: It was told to go, or sent away: what it leaves is handed back and costs no attempt.
        self.dismissed = False

    @classmethod
    async def start(cls, number: int, start: messages.Start) -> ChildProcess:
        """A new process, told its options; in a session of its own, so that Ctrl-C reaches the supervisor only."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "holdfast.worker.child",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        child = cls(number, start.worker_id, process, await SupervisorEnd.open(ours))
        child.send(start)
        return child

    def policy(self, held: HeldTask) -> RetryPolicy:
        """The retry policy of a held task."""
        return held.policy or DEFAULT_POLICY

    def send(self, message: ToChild) -> None:
        """Says something to it, if it still listens."""
        self._channel.send(message)

    def kill(self) -> None:
        """SIGKILL, unless it is gone.

        Not by `Process.kill`: that looks first whether the process has ended, and so takes the exit code
        away from the event loop, which then reports 255.
        """
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    async def until_gone(self, heed: Callable[[FromChild], Awaitable[None]]) -> str:
        """Takes in what it says until it is gone, and tells how it ended."""
        reading = asyncio.create_task(self._read(heed))
        exiting = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait((reading, exiting), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((reading, exiting), timeout=LAST_WORDS_S)
        finally:
            reading.cancel()
            self.kill()
            await exiting
            self._channel.close()
        if reading.done() and not reading.cancelled() and (error := reading.exception()) is not None:
            raise error
        return self._how_it_ended()

    async def _read(self, heed: Callable[[FromChild], Awaitable[None]]) -> None:
        async for message in self._channel.messages():
            if isinstance(message, messages.Held):
                self._note(message)
            elif isinstance(message, messages.Progress):
                self.progress.update(message.latest)
            elif isinstance(message, messages.Drained):
                self.released = message.released
            await heed(message)

    def _note(self, held: messages.Held) -> None:
        for key in held.drop:
            self.holds.pop(key, None)
            self.cancelling.discard(key)
            self.progress.pop(key, None)
        for task in held.add:
            self.holds[task.key] = task
        self.told = held.number
        self.asking = held.asking
        self.running = held.running

    def _how_it_ended(self) -> str:
        code = self._process.returncode or 0
        if code >= 0:
            return f"exited with code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
