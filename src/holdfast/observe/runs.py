"""Counts runs: begun, ended and how, how long they took and how long they had waited; by queue and type.

A child that does little else does this tens of thousands of times a second: so the end of a run, which for short ones
is all that is counted, notes a few numbers, keeps no object alive, and the rest is done for many at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic_ns
from typing import Final, Protocol

from holdfast.core.lifecycle import Change, Event
from holdfast.core.task import Claimed
from holdfast.observe.metrics import RUN_SECONDS, RUNS_ENDED, RUNS_STARTED, WAIT_SECONDS, Tally, bounds_us, note_all

SUCCEEDED: Final = "succeeded"
#: The claim was lost: nothing was settled.
LOST: Final = "lost"
#: How a run ends, by the event that settles it.
OUTCOMES: Final = {
    Event.ACK: SUCCEEDED,
    Event.RETRY: "retried",
    Event.FAIL: "failed",
    Event.BURY: "dead_lettered",
    Event.STOP: "cancelled",
    Event.SNOOZE: "snoozed",
    Event.RELEASE: "released",
}
_RUN_NS: Final = [bound_us * 1000 for bound_us in bounds_us(RUN_SECONDS)]
_WAIT_MS: Final = [bound_us // 1000 for bound_us in bounds_us(WAIT_SECONDS)]
_ACK: Final = Event.ACK


class CountedRun(Protocol):
    """What is to be known of a run."""

    task: Claimed
    #: Monotonic.
    began_at_ns: int
    #: Whether its beginning was counted.
    noted: bool

    @property
    def settled(self) -> bool:
        """Whether it has succeeded by the commit of its own transaction."""
        ...


def outcome_of(run: CountedRun, change: Change | None) -> str:
    """In one word, how a run has ended."""
    if change is None:
        return SUCCEEDED if run.settled else LOST
    return OUTCOMES.get(change.event, LOST)


class _Pair:
    """The runs of one queue and type: the cells, and what is still to be put into them."""

    __slots__ = (
        "_ran",
        "_started",
        "_succeeded",
        "_took_ns",
        "_waited",
        "_waits_ms",
        "note_time",
        "note_wait",
        "noted",
        "others",
        "queue",
        "type",
    )

    def __init__(self, tally: Tally, queue: str, task_type: str) -> None:
        self.queue = queue
        self.type = task_type
        self._started = tally.cell(RUNS_STARTED, queue, task_type)
        self._succeeded = tally.cell(RUNS_ENDED, queue, task_type, SUCCEEDED)
        self._waited = tally.cell(WAIT_SECONDS, queue, task_type)
        self._ran = tally.cell(RUN_SECONDS, queue, task_type)
        self._took_ns: list[int] = []
        self._waits_ms: list[int] = []
        #: How long a run took, and how long its task had waited: two lists, and looked up once.
        self.note_time = self._took_ns.append
        self.note_wait = self._waits_ms.append
        #: Of those that have ended: how many were counted before that, and how many did not succeed.
        self.noted = 0
        self.others = 0

    def begin(self, task: Claimed) -> None:
        """A run that has not ended yet."""
        self._started[0] += 1
        self.note_wait(task.claimed_at_ms - (task.ready_at_ms or task.created_at_ms))

    def flush(self) -> None:
        """Puts all of it into the cells."""
        if ended := self._took_ns:
            self._started[0] += len(ended) - self.noted
            self._succeeded[0] += len(ended) - self.others
            self.noted = self.others = 0
            self._ran[-1] += sum(ended) // 1000
            note_all(self._ran, _RUN_NS, ended)
            ended.clear()
        if waits := self._waits_ms:
            self._waited[-1] += max(0, sum(waits)) * 1000  # a failover may set the clock back
            note_all(self._waited, _WAIT_MS, waits)
            waits.clear()


class RunTally:
    """The runs of all queues and types."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._pairs: dict[tuple[str, str], _Pair] = {}
        #: The one that was last counted: the runs of one batch mostly share it.
        self._last = _Pair(Tally(), "", "")

    def note_begun(self, runs: Iterable[CountedRun]) -> None:
        """Counts those that were not counted yet."""
        for run in runs:
            if not run.noted:
                run.noted = True
                self._pair(run.task).begin(run.task)

    def note_ended(self, run: CountedRun, change: Change | None) -> None:
        """Counts the end of a run that is settled by this, and its beginning if that is still to be done."""
        task, pair = run.task, self._last
        if task.type != pair.type or task.queue != pair.queue:
            pair = self._last = self._pair(task)
        pair.note_time(monotonic_ns() - run.began_at_ns)
        if run.noted:
            pair.noted += 1
        else:
            pair.note_wait(task.claimed_at_ms - (task.ready_at_ms or task.created_at_ms))
        if change is None or change.event is not _ACK:
            pair.others += 1
            self._tally.count(RUNS_ENDED, task.queue, task.type, outcome_of(run, change))

    def flush(self) -> None:
        """Puts into the tally what has been counted."""
        for pair in self._pairs.values():
            pair.flush()

    def _pair(self, task: Claimed) -> _Pair:
        pair = self._pairs.get((task.queue, task.type))
        if pair is None:
            queue, task_type = self._tally.bounded(task.queue, task.type)
            pair = self._pairs.get((queue, task_type)) or _Pair(self._tally, queue, task_type)
            self._pairs[queue, task_type] = pair
        return pair
