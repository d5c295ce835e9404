"""Bugs of reserve and extend."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.lifecycle import Change
from holdfast.core.task import Claimed, Enqueued, Extension, Hold, NewTask, State
from holdfast.stores import documents
from holdfast.stores.contract import Query, Reserve, Reserved, Store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.broken.base import BrokenStore


class OneMoreThanAsked(BrokenStore):
    """Reserve hands out one task more than was asked for."""

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """LIMIT + 1."""
        return await self.inner.reserve(msgspec.structs.replace(request, max_tasks=request.max_tasks + 1), settle)


class BytesIgnored(BrokenStore):
    """Reserve hands out as many tasks as were asked for, however large they are."""

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Without a limit in bytes."""
        return await self.inner.reserve(msgspec.structs.replace(request, max_bytes=1 << 40), settle)


class PauseIgnored(BrokenStore):
    """A paused queue is shown as paused and goes on handing out."""

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Resumed for the time of the call."""
        paused = [counts.queue for counts in await self.inner.counts() if counts.paused]
        for queue in paused:
            await documents.pause(self.inner, queue, False)
        answer = await self.inner.reserve(request, settle)
        for queue in paused:
            await documents.pause(self.inner, queue, True)
        return answer


class TypesIgnored(BrokenStore):
    """A worker gets tasks of types that it does not know."""

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Any type."""
        return await self.inner.reserve(msgspec.structs.replace(request, types=None), settle)


class SharesIgnored(BrokenStore):
    """The first queue gets all slots, whatever the shares."""

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Strict order of the queues."""
        shares = [QueueShare(share.queue, request.max_tasks) for share in request.shares]
        return await self.inner.reserve(msgspec.structs.replace(request, shares=shares), settle)


class LastInFirstOut(BrokenStore):
    """The newest task of a batch is started first."""

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """In reverse."""
        answer = await self.inner.reserve(request, settle)
        return msgspec.structs.replace(answer, tasks=answer.tasks[::-1])


class PriorityIgnored(BrokenStore):
    """Every task is ranked as if it had no priority."""

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """All the same."""
        return await self.inner.enqueue(
            [msgspec.structs.replace(task, priority=0) for task in tasks], map_version=map_version
        )


class RepeatedClaimIdGetsMore(BrokenStore):
    """The same claim_id again, after a lost reply, gets new tasks; the first ones are stuck."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._calls = 0

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Each call under a claim_id of its own."""
        self._calls += 1
        renamed = msgspec.structs.replace(request, claim_id=f"{request.claim_id}-{self._calls}")
        return await self.inner.reserve(renamed, settle)


class RepeatExtendsLeases(BrokenStore):
    """A repeated reserve call gives new leases to the claims it finds."""

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Extended on the way."""
        answer = await self.inner.reserve(request, settle)
        await self.inner.extend([Hold(task.task_id, task.token) for task in answer.tasks], request.lease_ms)
        return answer


class HandsOutTwice(BrokenStore):
    """A task that is claimed is handed out again when a queue is empty: two holders of one claim."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._given: list[Claimed] = []

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """What was given last, again."""
        answer = await self.inner.reserve(request, settle)
        if not answer.tasks and self._given and request.max_tasks:
            return msgspec.structs.replace(answer, tasks=[self._given[-1]])
        self._given += answer.tasks
        return answer


class CancelledIsReserved(BrokenStore):
    """Cancelling a ready task does not take it out of the queue: it is handed out all the same."""

    def __init__(self, inner: Store, clock: SteppedClock) -> None:
        super().__init__(inner, clock)
        self._calls = 0

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """A cancelled task under a made-up claim."""
        answer = await self.inner.reserve(request, settle)
        if len(answer.tasks) >= request.max_tasks:
            return answer
        page = await self.inner.find(Query(states=frozenset({State.CANCELLED})))
        wanted = [task for task in page.tasks if task.queue in {share.queue for share in request.shares}]
        ghosts = [
            Claimed(
                task.task_id,
                f"0.{task.deliveries + 1}.{request.claim_id}",
                task.type,
                task.queue,
                task.payload,
                task.headers,
                task.priority,
                task.policy,
                task.attempt + 1,
                task.created_at_ms,
                self.clock.now_ms(),
                task.run_at_ms,
            )
            for task in wanted[:1]
        ]
        return msgspec.structs.replace(answer, tasks=[*answer.tasks, *ghosts])


class AttemptCountedTwice(BrokenStore):
    """Every claim uses up two attempts."""

    async def reserve(self, request: Reserve, settle: Sequence[Change] = ()) -> Reserved:
        """Claimed, lost and claimed again."""
        first = await self.inner.reserve(request, settle)
        if any(task.attempt % 2 == 0 for task in first.tasks):
            return first
        await self.inner.apply([
            lifecycle.lose(task.task_id, task.token, "worker_lost", attempt=task.attempt, policy=task.policy)
            for task in first.tasks
        ])  # fmt: skip
        again = await self.inner.reserve(request)
        return msgspec.structs.replace(first, tasks=again.tasks)


class ExtendAcceptsStaleTokens(BrokenStore):
    """Extend looks at the task only: a worker that has lost its claim keeps the new holder's lease alive."""

    async def extend(self, holds: Sequence[Hold], lease_ms: int, *, check_only: bool = False) -> list[Extension]:
        """Always held, if there is such a task."""
        answers = await self.inner.extend(holds, lease_ms, check_only=check_only)
        return [Extension(True) if answer.reason == "stale_claim" else answer for answer in answers]


class ExtendHidesCancellation(BrokenStore):
    """The holder of a cancelled task is not told."""

    async def extend(self, holds: Sequence[Hold], lease_ms: int, *, check_only: bool = False) -> list[Extension]:
        """Nothing was asked."""
        answers = await self.inner.extend(holds, lease_ms, check_only=check_only)
        return [msgspec.structs.replace(answer, cancel_requested=False) for answer in answers]


class ExtendDoesNothing(BrokenStore):
    """Heartbeats are answered and forgotten: long tasks lose their leases."""

    async def extend(self, holds: Sequence[Hold], lease_ms: int, *, check_only: bool = False) -> list[Extension]:
        """By nothing."""
        del lease_ms
        return await self.inner.extend(holds, 0, check_only=check_only)


class CheckOnlyExtends(BrokenStore):
    """A look at claims renews them: a worker that is only asked about keeps its tasks for ever."""

    async def extend(self, holds: Sequence[Hold], lease_ms: int, *, check_only: bool = False) -> list[Extension]:
        """As any other."""
        del check_only
        return await self.inner.extend(holds, lease_ms)


class CheckOnlyIsAlwaysHeld(BrokenStore):
    """A look at claims finds all of them current."""

    async def extend(self, holds: Sequence[Hold], lease_ms: int, *, check_only: bool = False) -> list[Extension]:
        """Without a look."""
        answers = await self.inner.extend(holds, lease_ms, check_only=check_only)
        return [Extension(True)] * len(holds) if check_only else answers
