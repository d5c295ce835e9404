"""A store whose calls are counted and timed; what the engine inside does, it does not know of."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from copy import copy
from time import monotonic_ns
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from holdfast import errors
from holdfast.core.lifecycle import SETTLEMENTS, Change, Verdict
from holdfast.core.task import Enqueued, NewTask
from holdfast.observe.metrics import (
    CLAIMS_LOST,
    MAX_PAIRS,
    OTHER,
    SETTLEMENTS_REFUSED,
    STORE_ERRORS,
    STORE_SECONDS,
    TASKS_ENQUEUED,
    Cell,
    Clocked,
    Tally,
)
from holdfast.stores.capabilities import PartialView, in_part
from holdfast.stores.contract import MAINTENANCE, DocumentResult, DocumentWrite, Leadership, Reserve, Reserved, Store
from holdfast.stores.decorate import PassingStore

Answer = TypeVar("Answer")

#: How the end of a claim is recorded that its holder did not settle itself.
_LOST: Final = frozenset({"lease_expired", "worker_lost"})
_REASONS: Final = frozenset({"unknown", "stale_claim", "wrong_state", "stale_epoch"})
#: Calls that take as long as they are told to.
_WAITS: Final = frozenset({"wait"})


class Leaderships:
    """The partitions whose maintenance this process leads, by the answers of its stores."""

    def __init__(self) -> None:
        self._until_ns: dict[int, int] = {}

    def note(self, holder: object, leadership: Leadership) -> None:
        """Notes the answer of a store that was asked for the leadership of a partition."""
        if leadership.held and leadership.expires_in_ms > 0:
            self._until_ns[id(holder)] = monotonic_ns() + leadership.expires_in_ms * 1_000_000
        else:
            self._until_ns.pop(id(holder), None)

    def held(self) -> int:
        """How many they are now."""
        return sum(until_ns > monotonic_ns() for until_ns in self._until_ns.values())


class ObservedStore(PassingStore):
    """Another store, and a tally of what goes through."""

    def __init__(self, inner: Store, tally: Tally, leaderships: Leaderships | None = None) -> None:
        super().__init__(inner)
        self._tally = tally
        self._leaderships = leaderships or Leaderships()
        for cause in sorted(_LOST):  # a rate needs to have seen the 0
            tally.cell(CLAIMS_LOST, cause)
        for event in sorted(SETTLEMENTS):
            tally.cell(SETTLEMENTS_REFUSED, event.value, "stale_claim")
        self._clocked: dict[str, Clocked] = {}
        #: A server counts itself what goes through it.
        self._counts_itself = inner.url.startswith(("http:", "https:"))
        self._enqueued: dict[tuple[str, str], Cell] = {}
        self._partitions: list[ObservedStore] = []
        if inner.capabilities.enqueue_now is not None:
            self.capabilities = replace(self.capabilities, enqueue_now=self._enqueue_now)
        if inner.capabilities.in_part is not None:
            self.capabilities = replace(self.capabilities, in_part=self._in_part)

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

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """Passed on, and counted."""
        return self._count_enqueued(tasks, await super().enqueue(tasks, map_version=map_version))

    def _enqueue_now(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued] | None:
        """Passed on, and counted if it was done."""
        enqueue_now = self.inner.capabilities.enqueue_now
        sent_at_ns = monotonic_ns()
        answers = None if enqueue_now is None else enqueue_now(tasks, map_version=map_version)
        if answers is None:
            return None
        self._note_time("enqueue", sent_at_ns)
        return self._count_enqueued(tasks, answers)

    def _in_part(self, *, until_deadline: bool = False) -> PartialView:
        """A view whose calls are observed too."""
        inner = in_part(self.inner, until_deadline=until_deadline)
        view = copy(self)
        view.inner, view.capabilities = inner.store, inner.store.capabilities
        return PartialView(view, inner.left_out)

    async def put(self, write: DocumentWrite) -> DocumentResult:
        """Passed on, and the tasks sent with it counted."""
        result = await super().put(write)
        if result.applied and not self._counts_itself:
            for task in write.tasks:
                self._count_new(task)
        return result

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

    async def lead(self, name: str, owner: str | None, ttl_ms: int = 0) -> Leadership:
        """Passed on, and the leadership of the maintenance noted."""
        leadership = await super().lead(name, owner, ttl_ms)
        if name == MAINTENANCE and owner is not None:
            self._leaderships.note(self, leadership)
        return leadership

    async def partitions(self) -> Sequence[Store]:
        """Each of them observed."""
        inner = list(await self.inner.partitions())
        if inner == [self.inner]:
            return [self]
        if inner != [each.inner for each in self._partitions]:
            self._partitions = [ObservedStore(each, self._tally, self._leaderships) for each in inner]
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
            # Maintenance may always find that a worker was faster.
            if not verdict.applied and change.event in SETTLEMENTS and not change.expired_only:
                reason = verdict.reason if verdict.reason in _REASONS else OTHER
                self._tally.count(SETTLEMENTS_REFUSED, change.event.value, reason)


_KNOWN_ERRORS: Final = frozenset(
    each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.HoldfastError)
)
