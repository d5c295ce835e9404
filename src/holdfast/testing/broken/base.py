"""What all broken stores share."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.task import Task
from holdfast.stores.contract import Reserve, Reserved, Store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.wrapping import PassingStore


class BrokenStore(PassingStore):
    """A good store with one bug; the docstring of each class names it."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner)
        self.clock = clock

    async def task(self, task_id: str) -> Task | None:
        """What the good store knows of a task."""
        [task] = await self.inner.get([task_id])
        return task


class TranslatingStore(BrokenStore):
    """A good store that is sent other changes than the caller sent, or whose verdicts are twisted."""

    async def translated(self, change: Change) -> Change:
        """The change as the good store gets it."""
        return change

    def twisted(self, change: Change, verdict: Verdict) -> Verdict:
        """The verdict as the caller gets it."""
        del change
        return verdict

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """One by one, with the bug."""
        return [await self._apply_one(change) for change in changes]

    async def _apply_one(self, change: Change) -> Verdict:
        [verdict] = await self.inner.apply([await self.translated(change)])
        return self.twisted(change, verdict)

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Settlements take the same way as in `apply`."""
        verdicts = await self.apply(settle)
        answer = await self.inner.reserve(request)
        return msgspec.structs.replace(answer, verdicts=verdicts)
