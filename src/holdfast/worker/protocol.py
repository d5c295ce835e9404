"""The messages between a supervisor and its children, and the channel that carries them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterator

import msgspec

from holdfast.core.declared import DeclaredType
from holdfast.core.retry import DEFAULT_POLICY, RunPolicy
from holdfast.core.schedule.record import Schedule
from holdfast.core.task import Claimed
from holdfast.observe.metrics import Count
from holdfast.runtime.forks import generation
from holdfast.worker.options import WorkerOptions

_LENGTH = struct.Struct(">I")
#: A batch of claims is far smaller; anything larger is not one of our messages.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024


class HeldTask(msgspec.Struct, frozen=True, array_like=True):
    """One claim of a child: all that is needed to extend it, and to settle it when the child is gone."""

    #: The child's own number for this claim: tasks of one batch may share a token, and a task may come back.
    key: int
    task_id: str
    token: str
    attempt: int
    policy: RunPolicy | None = None  # None: the default one

    @property
    def hard_timeout_ms(self) -> int | None:
        """How long it may run before its process is killed."""
        return self.policy.hard_timeout_ms if self.policy else None

    @classmethod
    def of(cls, key: int, task: Claimed) -> HeldTask:
        """The claim of a task that was just reserved."""
        policy = task.policy
        is_default = policy is DEFAULT_POLICY or policy == DEFAULT_POLICY
        return cls(key, task.task_id, task.token, task.attempt, None if is_default else policy)


class Message(msgspec.Struct, frozen=True, tag=True):
    """The base of all messages."""


# -- from a child --------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The app is imported; the child waits for `Begin`."""

    url: str
    lease_ms: int
    types: tuple[str, ...]
    #: Those of the types that run one at a time, in children of their own.
    alone: tuple[str, ...] = ()
    #: What the app declares in its code.
    schedules: tuple[Schedule, ...] = ()
    #: The queues of its types and schedules, and others that it names.
    queues: tuple[str, ...] = ()
    #: What the worker publishes of its types.
    declared: tuple[DeclaredType, ...] = ()


class ImportFailed(Message, frozen=True):
    """The app cannot be used, in one line."""

    line: str


class Broken(Message, frozen=True):
    """The child ends because of an error that a repeat would not fix, in one line."""

    line: str


class Held(Message, frozen=True):
    """What changed since the last one; sent before any of the added tasks is started."""

    number: int  # 1, 2, 3…
    add: list[HeldTask] = []
    drop: list[int] = []  # keys
    #: The claim_id of the next reserve: if the child dies after its commit, these tasks can still be found.
    asking: str = ""
    running: int = 0


class ProgressReport(Message, frozen=True):
    """The latest progress by key, JSON bytes."""

    latest: dict[int, bytes]


class Ended(Message, frozen=True):
    """These runs, which have a hard time limit, are over; their settlement is still to come."""

    keys: list[int]


class Reserving(Message, frozen=True):
    """The store answered a reserve that was sent at this time."""

    sent_at_ms: int  # monotonic


class WakeupUnused(Message, frozen=True):
    """There was a wake-up, but nothing of this child's types: a child of the other kind may be meant."""


class Counted(Message, frozen=True):
    """What the child has counted since the last time, for the metrics of the worker."""

    counts: list[Count]


class Recycle(Message, frozen=True):
    """The child has reached its limit of tasks or memory and asks for a successor; it works on until `Quiet`."""

    reason: str


class Drained(Message, frozen=True):
    """The child settled all it could and exits; this many tasks were released."""

    released: int


# -- from the supervisor -------------------------------------------------------------------------------------


class Start(Message, frozen=True):
    """The first message to a child."""

    options: WorkerOptions
    worker_id: str
    #: True after a crash: begin with one slot.
    slow_start: bool = False
    #: Runs the types that want to be alone, one task at a time, and no others.
    alone: bool = False
    #: Reserves nothing until it is told to.
    paused: bool = False


class Begin(Message, frozen=True):
    """The supervisor is ready to extend claims: reserve, unless it is drained by now."""

    paused: bool = False


class Extended(Message, frozen=True):
    """All claims in a partition up to `Held.number`, less the lost ones, were renewed by a request sent then."""

    number: int
    sent_at_ms: int  # monotonic, the same clock in all processes of a machine
    partition: int


class Lost(Message, frozen=True):
    """These claims are no longer ours."""

    keys: list[int]
    reason: str


class CancelRequested(Message, frozen=True):
    """A cancellation of these tasks was requested."""

    keys: list[int]


class Look(Message, frozen=True):
    """There may be something to reserve."""


class Resize(Message, frozen=True):
    """Run this many tasks at once from now on; more that run already go on."""

    concurrency: int


class Pause(Message, frozen=True):
    """Reserve no more, or reserve again; running tasks go on, and so does the child."""

    paused: bool


class Quiet(Message, frozen=True):
    """Reserve no more; exit when the running tasks have finished."""


class Stop(Message, frozen=True):
    """Release what is not finished, and exit."""


FromChild = (
    Hello
    | ImportFailed
    | Broken
    | Held
    | ProgressReport
    | Ended
    | Reserving
    | WakeupUnused
    | Counted
    | Recycle
    | Drained
)
ToChild = Start | Begin | Extended | Lost | CancelRequested | Look | Resize | Pause | Quiet | Stop

_encoder = msgspec.msgpack.Encoder()
_from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)
_to_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)


# -- the channel: length-prefixed msgpack over a socket pair ---------------------------------------------------


def _frame(message: FromChild | ToChild) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def _body_length(header: bytes) -> int:
    length: int = _LENGTH.unpack(header)[0]
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes is not one of ours")
    return length


class ChildEnd:
    """The child's end: read by one thread, written by the event loop."""

    def __init__(self, connection: socket.socket) -> None:
        connection.set_inheritable(False)
        self._socket = connection
        self._incoming = connection.makefile("rb")
        self._turn = asyncio.Lock()
        self._generation = generation()

    def receive(self) -> ToChild | None:
        """The next message; blocks. None when the supervisor is gone."""
        with contextlib.suppress(ConnectionError):
            header = self._incoming.read(_LENGTH.size)
            if len(header) == _LENGTH.size:
                body = self._incoming.read(_body_length(header))
                return _to_child.decode(body) if len(body) == _body_length(header) else None
        return None

    def messages(self) -> Iterator[ToChild]:
        """All messages until the supervisor is gone; blocks."""
        while (message := self.receive()) is not None:
            yield message

    def send_blocking(self, message: FromChild) -> None:
        """For the time before there is an event loop."""
        self._socket.sendall(_frame(message))

    async def send(self, message: FromChild) -> None:
        """In the kernel's hands when it returns, so that a killed child has still said it.

        A supervisor that does not read holds up the reserving, not the tasks. One that is gone is noticed
        by the reading thread. What a forked copy of the child says is not sent.
        """
        if self._generation != generation():
            return
        async with self._turn:
            with contextlib.suppress(ConnectionError):
                data = _frame(message)
                sent = self._send_some(data)
                if sent < len(data):
                    await asyncio.to_thread(self._socket.sendall, data[sent:])

    def close(self) -> None:
        """Lets go of the socket."""
        self._incoming.close()
        self._socket.close()

    def _send_some(self, data: bytes) -> int:
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0


class SupervisorEnd:
    """The supervisor's end of one child."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, connection: socket.socket) -> SupervisorEnd:
        """Takes over the socket."""
        return cls(*await asyncio.open_connection(sock=connection))

    async def messages(self) -> AsyncIterator[FromChild]:
        """All messages until the child is gone."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                header = await self._reader.readexactly(_LENGTH.size)
                yield _from_child.decode(await self._reader.readexactly(_body_length(header)))

    def send(self, message: ToChild) -> None:
        """Sends, or does nothing when the child is gone: its death is noticed elsewhere.

        Not awaited to the end: a stopped child must not hold up the heartbeats of the others, and what is
        sent to it is little.
        """
        if not self._writer.is_closing():
            self._writer.write(_frame(message))

    def close(self) -> None:
        """Lets go of the socket."""
        self._writer.close()
