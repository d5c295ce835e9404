"""A store whose calls are counted and timed; what the engine inside does, it does not know of."""

from __future__ import annotations

import copy
from collections.abc import Coroutine, Sequence
from time import monotonic_ns
from typing import Any, Final, TypeVar

from holdfast import errors
from holdfast.core.lifecycle import SETTLEMENTS, Change, Verdict
from holdfast.core.schedule import Schedule
from holdfast.core.task import Enqueued, NewTask
from holdfast.observe.names import (
    CLAIMS_LOST,
    MAX_PAIRS,
    OTHER,
    SETTLEMENTS_REFUSED,
    STORE_ERRORS,
    STORE_SECONDS,
    TASKS_ENQUEUED,
)
from holdfast.observe.tally import Cell, Clocked, Tally
from holdfast.stores.contract import UPKEEP_DUTY, Duty, Reserve, Reserved, Store
from holdfast.stores.passing import PassingStore

Answer = TypeVar("Answer")

#: How the end of a claim is recorded that its holder did not settle itself.
_LOST: Final = frozenset({"lease_expired", "worker_lost"})
_REASONS: Final = frozenset({"unknown", "stale_claim", "wrong_state", "stale_epoch"})
#: Calls that take as long as they are told to.
_WAITS: Final = frozenset({"wait"})


class Duties:
    """The partitions whose upkeep this process does, by what its stores were told."""

    def __init__(self) -> None:
        self._until_ns: dict[int, int] = {}

    def note(self, holder: object, duty: Duty) -> None:
        """The answer to whoever asked for the upkeep of a partition."""
        if duty.held and duty.expires_in_ms > 0:
            self._until_ns[id(holder)] = monotonic_ns() + duty.expires_in_ms * 1_000_000
        else:
            self._until_ns.pop(id(holder), None)

    def held(self) -> int:
        """How many they are now."""
        return sum(until_ns > monotonic_ns() for until_ns in self._until_ns.values())


class ObservedStore(PassingStore):
    """Another store, and a tally of what goes through."""

    def __init__(self, inner: Store, tally: Tally, duties: Duties | None = None) -> None:
        super().__init__(inner)
        self._tally = tally
        self._duties = duties or Duties()
        for cause in sorted(_LOST):  # a rate needs to have seen the 0
            tally.cell(CLAIMS_LOST, cause)
        for event in sorted(SETTLEMENTS):
            tally.cell(SETTLEMENTS_REFUSED, event.value, "stale_claim")
        self._clocked: dict[str, Clocked] = {}
        #: A gateway counts itself what goes through it.
        self._counts_itself = inner.url.startswith(("http:", "https:"))
        self._enqueued: dict[tuple[str, str], Cell] = {}
        self._partitions: list[ObservedStore] = []

    def __copy__(self) -> ObservedStore:
        """As of any store: with a `map_version` of its own, and all else shared."""
        return ObservedStore(copy.copy(self.inner), self._tally, self._duties)

    def __getattr__(self, name: str) -> Any:
        """What only one engine can do, outside the contract."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    async def _pass(self, method: str, call: Coroutine[Any, Any, Answer]) -> Answer:
        sent_at_ns = monotonic_ns()
        try:
            answer = await call
        except Exception as error:
            self._count_error(method, error)
            raise
        if method not in _WAITS:
            self._note_time(method, sent_at_ns)
        return answer

    def _note_time(self, method: str, sent_at_ns: int) -> None:
        clocked = self._clocked.get(method)
        if clocked is None:
            clocked = self._clocked[method] = Clocked(self._tally, STORE_SECONDS, method)
        clocked.note((monotonic_ns() - sent_at_ns) // 1000)

    def _count_error(self, method: str, error: Exception) -> None:
        self._tally.count(STORE_ERRORS, method, type(error).__name__ if type(error) in _KNOWN_ERRORS else OTHER)

    # -- what is counted besides ----------------------------------------------------------------------------

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """Passed on, and counted."""
        return self._count_enqueued(tasks, await super().enqueue(tasks))

    def enqueue_now(self, tasks: Sequence[NewTask]) -> list[Enqueued] | None:
        """Passed on, and counted if it was done."""
        sent_at_ns = monotonic_ns()
        answers = self.inner.enqueue_now(tasks)
        if answers is None:
            return None
        self._note_time("enqueue", sent_at_ns)
        return self._count_enqueued(tasks, answers)

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """Passed on, and the tasks of a tick counted."""
        done = await super().put_schedule(name, new, expected, tasks, epoch)
        if done and not self._counts_itself:
            for task in tasks:
                self._count_new(task)
        return done

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Passed on, and what was refused counted."""
        reserved = await super().reserve(request, settle)
        self._count_refused(settle, reserved.verdicts)
        return reserved

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Passed on, and counted what was refused, or taken away from a worker that is gone."""
        verdicts = await super().apply(changes)
        self._count_refused(changes, verdicts)
        self._count_lost(changes, verdicts)
        return verdicts

    async def hold_duty(self, name: str, owner: str, ttl_ms: int) -> Duty:
        """Passed on, and the upkeep noted."""
        duty = await super().hold_duty(name, owner, ttl_ms)
        if name == UPKEEP_DUTY:
            self._duties.note(self, duty)
        return duty

    def partitions(self) -> Sequence[Store]:
        """Each of them observed."""
        inner = list(self.inner.partitions())
        if inner == [self.inner]:
            return [self]
        if inner != [each.inner for each in self._partitions]:
            self._partitions = [ObservedStore(each, self._tally, self._duties) for each in inner]
        return self._partitions

    def _count_enqueued(self, tasks: Sequence[NewTask], answers: list[Enqueued]) -> list[Enqueued]:
        if not self._counts_itself:
            for task, answer in zip(tasks, answers, strict=True):
                if answer.created:
                    self._count_new(task)
        return answers

    def _count_new(self, task: NewTask) -> None:
        pair = (task.queue, task.type)
        cell = self._enqueued.get(pair)
        if cell is None:
            cell = self._tally.cell(TASKS_ENQUEUED, *pair)
            if len(self._enqueued) < MAX_PAIRS:
                self._enqueued[pair] = cell
        cell[0] += 1

    def _count_lost(self, changes: Sequence[Change], verdicts: Sequence[Verdict]) -> None:
        if self._counts_itself:
            return
        for change, verdict in zip(changes, verdicts, strict=True):
            if change.outcome in _LOST and verdict.applied and not verdict.repeated:
                self._tally.count(CLAIMS_LOST, change.outcome)

    def _count_refused(self, changes: Sequence[Change], verdicts: Sequence[Verdict]) -> None:
        if self._counts_itself or not [verdict for verdict in verdicts if not verdict.applied]:
            return
        for change, verdict in zip(changes, verdicts, strict=True):
            # The upkeep may always find that a worker was faster.
            if not verdict.applied and change.event in SETTLEMENTS and not change.lapsed_only:
                reason = verdict.reason if verdict.reason in _REASONS else OTHER
                self._tally.count(SETTLEMENTS_REFUSED, change.event.value, reason)


_KNOWN_ERRORS: Final = frozenset(
    each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.HoldfastError)
)
