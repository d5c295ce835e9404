"""Bugs of settlements, cancellation and replay."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Change, Event, Verdict
from holdfast.core.task import Claimed, Extension, Hold, State
from holdfast.stores.contract import Reserve, Reserved, Store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.broken.base import BrokenStore, TranslatingStore


class _KnowsTokens(TranslatingStore):
    """Remembers the newest claim of every task that it has handed out."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self.newest: dict[str, Claimed] = {}

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Noted down."""
        answer = await super().reserve(request, settle)
        self.newest.update({task.task_id: task for task in answer.tasks})
        return answer


class AckWithoutToken(_KnowsTokens):
    """Ack goes by task_id alone: a stalled worker completes the attempt of another one."""

    async def translated(self, change: Change) -> Change:
        """With the current token, whatever was sent."""
        newest = self.newest.get(change.task_id)
        if change.event is not Event.ACK or newest is None:
            return change
        return msgspec.structs.replace(change, token=newest.token)


class TokenKeptAfterRequeue(_KnowsTokens):
    """A requeued task is claimed under its old token, so that the old worker can still settle it."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._first: dict[str, str] = {}

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """The first token for ever."""
        answer = await super().reserve(request, settle)
        tasks = [
            msgspec.structs.replace(task, token=self._first.setdefault(task.task_id, task.token))
            for task in answer.tasks
        ]
        return msgspec.structs.replace(answer, tasks=tasks)

    async def translated(self, change: Change) -> Change:
        """The old token stands for the new one."""
        if change.token is None or self._first.get(change.task_id) != change.token:
            return change
        return msgspec.structs.replace(change, token=self.newest[change.task_id].token)

    async def extend(self, holds: Sequence[Hold], lease_ms: int, *, check_only: bool = False) -> list[Extension]:
        """The old token stands for the new one."""
        return await self.inner.extend([self._hold(hold) for hold in holds], lease_ms, check_only=check_only)

    def _hold(self, hold: Hold) -> Hold:
        if self._first.get(hold.task_id) != hold.token:
            return hold
        return msgspec.structs.replace(hold, token=self.newest[hold.task_id].token)


class SettlementDropped(TranslatingStore):
    """Every third settlement is answered as applied and never written."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._number = 0

    async def _apply_one(self, change: Change) -> Verdict:
        self._number += change.event in lifecycle.SETTLEMENTS
        if change.event in lifecycle.SETTLEMENTS and self._number % 3 == 0:
            return Verdict(True, state=lifecycle.target(State.CLAIMED, change.event))
        return await super()._apply_one(change)


class RepeatIsStale(TranslatingStore):
    """The same ack again is refused, so a worker that lost the reply believes that its work was in vain."""

    def twisted(self, change: Change, verdict: Verdict) -> Verdict:
        """No repeats."""
        del change
        return Verdict(False, reason="stale_claim", state=verdict.state) if verdict.repeated else verdict


class StaleIsAccepted(TranslatingStore):
    """A stale settlement changes nothing, but is answered as applied."""

    def twisted(self, change: Change, verdict: Verdict) -> Verdict:
        """Always fine."""
        del change
        return Verdict(True, state=verdict.state) if verdict.reason == "stale_claim" else verdict


class ReleaseUsesAnAttempt(TranslatingStore):
    """A task that is released has lost an attempt."""

    async def translated(self, change: Change) -> Change:
        """Treated as a lost worker."""
        return msgspec.structs.replace(change, event=Event.REQUEUE) if change.event is Event.RELEASE else change


class SnoozeUsesAnAttempt(TranslatingStore):
    """A task that asks to run later has lost an attempt."""

    async def translated(self, change: Change) -> Change:
        """Treated as a failure."""
        return msgspec.structs.replace(change, event=Event.RETRY) if change.event is Event.SNOOZE else change


class RetryIgnoresItsDelay(TranslatingStore):
    """A failed task is due again at once: a retry storm."""

    async def translated(self, change: Change) -> Change:
        """Without backoff."""
        return msgspec.structs.replace(change, delay_ms=0)


class NoDeadLetters(TranslatingStore):
    """A task that is out of attempts just fails."""

    async def translated(self, change: Change) -> Change:
        """Not kept."""
        return msgspec.structs.replace(change, event=Event.FAIL) if change.event is Event.BURY else change


class CancelLostOnRetry(TranslatingStore):
    """A cancellation that was accepted while the task ran is forgotten when the run fails."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._asked: dict[str, Change] = {}

    async def _apply_one(self, change: Change) -> Verdict:
        task = await self.task(change.task_id)
        if change.event is Event.CANCEL and task and task.state is State.CLAIMED:
            self._asked[change.task_id] = change
            return Verdict(True, state=State.CLAIMED)
        return await super()._apply_one(change)

    async def extend(self, holds: Sequence[Hold], lease_ms: int, *, check_only: bool = False) -> list[Extension]:
        """The running task is told, from memory."""
        answers = await self.inner.extend(holds, lease_ms, check_only=check_only)
        return [
            msgspec.structs.replace(answer, cancel_requested=answer.held and hold.task_id in self._asked)
            for hold, answer in zip(holds, answers, strict=True)
        ]


class ReplayKeepsAttempts(TranslatingStore):
    """A replayed task has its old attempts still used up."""

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Counts deliveries instead."""
        answer = await super().reserve(request, settle)
        records = await self.inner.get([task.task_id for task in answer.tasks])
        tasks = [
            msgspec.structs.replace(task, attempt=record.deliveries if record else task.attempt)
            for task, record in zip(answer.tasks, records, strict=True)
        ]
        return msgspec.structs.replace(answer, tasks=tasks)


class ResultDropped(TranslatingStore):
    """A task succeeds, but its result is gone."""

    async def translated(self, change: Change) -> Change:
        """Without result."""
        return msgspec.structs.replace(change, result=None)


class BadChangeStopsTheBatch(BrokenStore):
    """The first refused change of a batch ends it: those behind it are not executed."""

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Up to the first refusal."""
        verdicts: list[Verdict] = []
        for change in changes:
            if verdicts and not verdicts[-1].applied:
                verdicts.append(Verdict(False, reason=verdicts[-1].reason))
            else:
                verdicts += await self.inner.apply([change])
        return verdicts
