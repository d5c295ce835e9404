"""What a supervisor and its children say to each other."""

from __future__ import annotations

import msgspec

from holdfast.core.policy import DEFAULT_POLICY, RunPolicy
from holdfast.core.schedule import Schedule
from holdfast.core.task import Claimed
from holdfast.observe.tally import Count
from holdfast.stores.contract import Retention
from holdfast.worker.options import WorkerOptions


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
        usual = policy is DEFAULT_POLICY or policy == DEFAULT_POLICY
        return cls(key, task.task_id, task.token, task.attempt, None if usual else policy)


class Message(msgspec.Struct, frozen=True, tag=True):
    """The base of all messages."""


# -- from a child --------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The app is imported; the child waits for `Begin`."""

    url: str
    lease_ms: int
    retention: Retention
    types: tuple[str, ...]
    #: Those of the types that run one at a time, in children of their own.
    alone: tuple[str, ...] = ()
    #: What the app declares in its code.
    schedules: tuple[Schedule, ...] = ()


class ImportFailed(Message, frozen=True):
    """The app cannot be used, in one line."""

    line: str


class Broken(Message, frozen=True):
    """The child ends because of an error that a repeat would not mend, in one line."""

    line: str


class Held(Message, frozen=True):
    """What changed since the last one; sent before any of the added tasks is started."""

    number: int  # 1, 2, 3…
    add: list[HeldTask] = []
    drop: list[int] = []  # keys
    #: The claim_id of the next reserve: if the child dies after its commit, these tasks can still be found.
    asking: str = ""
    running: int = 0


class Progress(Message, frozen=True):
    """The latest progress by key, JSON bytes."""

    latest: dict[int, bytes]


class Ended(Message, frozen=True):
    """These runs, which have a hard time limit, are over; their settlement is still to come."""

    keys: list[int]


class Reserving(Message, frozen=True):
    """The store answered a reserve that was sent at this time."""

    sent_at_ms: int  # monotonic


class RungInVain(Message, frozen=True):
    """The bell rang, and there was nothing of this child's types: a child of the other kind may be meant."""


class Counted(Message, frozen=True):
    """What the child has counted since the last time, for the metrics of the worker."""

    counts: list[Count]


class Worn(Message, frozen=True):
    """The child has done its share, or uses too much memory, and asks for a successor; it works on until `Quiet`."""

    reason: str


class Drained(Message, frozen=True):
    """The child settled all it could and exits; so many tasks were handed back."""

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


class Begin(Message, frozen=True):
    """The supervisor is ready to extend claims: reserve."""


class Extended(Message, frozen=True):
    """All claims told up to `Held.number`, less the lost ones, were extended by a request sent at this time."""

    number: int
    sent_at_ms: int  # monotonic, the same clock in all processes of a machine


class Lost(Message, frozen=True):
    """These claims are no longer ours."""

    keys: list[int]
    reason: str


class CancelRequested(Message, frozen=True):
    """Somebody wants these tasks not to go on."""

    keys: list[int]


class Look(Message, frozen=True):
    """There may be something to reserve."""


class Resize(Message, frozen=True):
    """So many tasks at once from now on; what runs over that goes on."""

    concurrency: int


class Quiet(Message, frozen=True):
    """Reserve no more; exit when the running tasks have finished."""


class Stop(Message, frozen=True):
    """Hand back what is not finished, and exit."""


FromChild = Hello | ImportFailed | Broken | Held | Progress | Ended | Reserving | RungInVain | Counted | Worn | Drained
ToChild = Start | Begin | Extended | Lost | CancelRequested | Look | Resize | Quiet | Stop
