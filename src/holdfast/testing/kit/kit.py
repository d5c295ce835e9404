"""The hands of a conformance case: short ways to make, claim, settle and look at tasks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Final

from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import IdSource, claim_token
from holdfast.core.lifecycle import Change, Verdict
from holdfast.core.retry import RunPolicy
from holdfast.core.schedule.record import Schedule, ScheduledCall, Timing
from holdfast.core.task import Claimed, Enqueued, ExpiredClaim, Failure, NewTask, State, Task
from holdfast.stores.contract import MAINTENANCE, Placement, Promoted, QueueCounts, Reserve, Retention, Store
from holdfast.testing.kit.expect import expect_true, only
from holdfast.testing.kit.harness import StoreHarness

LEASE_MS: Final = 30_000
FAILURE: Final = Failure("builtins.ValueError", "no such cat", "Traceback: line 1")
#: Three attempts, a second in between, no jitter.
POLICY: Final = RunPolicy(max_attempts=3, base_ms=1_000, cap_ms=60_000, jitter=0.0)
#: Finished tasks go as soon as they are finished.
KEEP_NOTHING: Final = Retention(keep=0, discards_ms=0)
#: A token that no store has given out.
FOREIGN_TOKEN: Final = claim_token(0, 1, "feed" * 8)


class Kit:
    """What a case is given: a fresh store, its clock, and helpers."""

    def __init__(self, harness: StoreHarness, store: Store) -> None:
        self.store = store
        self.clock = harness.clock
        #: Where the ids of new tasks belong; `begin` asks the store.
        self.place: Placement = lambda _queue, _request_id: 0
        self._harness = harness
        #: Every opened store, this one first.
        self.opened = [store]
        serial = count(1)
        self.ids = IdSource(self.clock.now_ms, lambda size: next(serial).to_bytes(size, "big"))

    # -- opening and closing --------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Makes the store ready for its first call."""
        await self.store.migrate()
        self.place = await self.store.placement()

    async def partition(self, number: int) -> Store:
        """One of the partitions of the store, as a store of its own."""
        return (await self.store.partitions())[number]

    async def another(self) -> Store:
        """A second store on the same data, as another process would open it."""
        store = await self._harness.open()
        self.opened.append(store)
        return store

    async def reopen(self) -> None:
        """Closes the store and opens the same data again."""
        self.opened.remove(self.store)
        await self.store.close()
        self.store = await self.another()

    async def close(self) -> None:
        """Closes every store that was opened."""
        while self.opened:
            await self.opened.pop().close()

    # -- the path of a task ---------------------------------------------------------------------------------

    def new_task(self, **fields: Any) -> NewTask:
        """An envelope with a new id; fields not given are plain ones."""
        partition = self.place(fields.get("queue", "default"), fields.get("request_id"))
        plain = {"task_id": self.ids.task_id(partition), "type": "kit.work", "queue": "default", "payload": b"{}"}
        return NewTask(**{"policy": POLICY, **plain, **fields})

    async def enqueue(self, number: int = 1, **fields: Any) -> list[str]:
        """The ids of that many new tasks, recorded in one call."""
        answers = await self.store.enqueue([self.new_task(**fields) for _ in range(number)])
        expect_true(f"all {number} new tasks are recorded", all(answer.created for answer in answers))
        return [answer.task_id for answer in answers]

    async def add(self, task: NewTask) -> Enqueued:
        """The answer to one task sent."""
        return (await self.store.enqueue([task]))[0]

    def request(self, max_tasks: int = 1, **fields: Any) -> Reserve:
        """A reserve request for the queue `default`, or for `queues`, each with all slots as its share."""
        queues: Sequence[str] = fields.pop("queues", ("default",))
        shares = [QueueShare(queue, max_tasks) for queue in queues]
        plain = {"claim_id": self.ids.claim_id(), "worker_id": "worker-1", "shares": shares, "lease_ms": LEASE_MS}
        return Reserve(max_tasks=max_tasks, **{**plain, **fields})

    async def reserve(self, max_tasks: int = 1, **fields: Any) -> list[Claimed]:
        """The tasks that a new reserve call gets."""
        return (await self.store.reserve(self.request(max_tasks, **fields))).tasks

    async def reserve_one(self, **fields: Any) -> Claimed:
        """The one task that a new reserve call for one must get."""
        return only("tasks handed out", await self.reserve(1, **fields))

    async def claim(self, **fields: Any) -> Claimed:
        """A new task under a claim of `worker-1` for `LEASE_MS`."""
        [task_id] = await self.enqueue(1, **fields)
        claimed = await self.reserve_one(queues=(fields.get("queue", "default"),))
        expect_true("the new task is the one that is reserved", claimed.task_id == task_id)
        return claimed

    async def apply(self, change: Change) -> Verdict:
        """The verdict on one change."""
        return (await self.store.apply([change]))[0]

    async def dead_letter(self, **fields: Any) -> str:
        """The id of a new task that has failed for good."""
        claim = await self.claim(**fields)
        await self.apply(give_up(claim))
        return claim.task_id

    # -- reading --------------------------------------------------------------------------------------------

    async def record(self, task_id: str) -> Task:
        """The task; it must be known."""
        [task] = await self.store.get([task_id])
        if task is None:
            raise AssertionError(f"task {task_id} is known to the store")
        return task

    async def state(self, task_id: str) -> State:
        """The state of a task that must be known."""
        return (await self.record(task_id)).state

    async def counts(self, queue: str = "default") -> QueueCounts:
        """The counts of one queue, empty if the store does not list it."""
        found = [counts for counts in await self.store.counts() if counts.queue == queue]
        return found[0] if found else QueueCounts(queue=queue)

    # -- maintenance ----------------------------------------------------------------------------------------

    async def leader_epoch(self, owner: str = "leader-1", ttl_ms: int = 10_000_000) -> int:
        """The epoch of the leadership of the maintenance, taken or renewed by this owner."""
        leadership = await self.store.lead(MAINTENANCE, owner, ttl_ms)
        expect_true(f"{owner} leads the maintenance", leadership.held)
        return leadership.epoch

    async def new_leader_epoch(self) -> int:
        """The epoch after `leader-1` let the leadership go and `leader-2` took it."""
        await self.store.lead(MAINTENANCE, "leader-1", 0)
        return await self.leader_epoch("leader-2")

    async def promote(self) -> Promoted:
        """Promotes what is due as the leader of the maintenance."""
        return await self.store.promote(await self.leader_epoch())

    async def prune(self, retention: Retention) -> int:
        """Prunes as the leader of the maintenance until a call finds nothing; the number of deleted tasks."""
        epoch, deleted = await self.leader_epoch(), 0
        while pruned := await self.store.prune(epoch, retention):
            deleted += pruned
        return deleted

    async def expired(self, limit: int = 1_000) -> list[ExpiredClaim]:
        """The claims whose lease has expired."""
        return (await self.store.expired(limit)).claims

    async def unstarted(self, limit: int = 1_000) -> list[str]:
        """The tasks that were not started in time."""
        return (await self.store.expired(limit)).unstarted

    async def requeue_expired(self) -> list[Verdict]:
        """Takes away the claims whose lease has expired, as the leader of the maintenance."""
        epoch = await self.leader_epoch()
        return await self.store.apply([
            lifecycle.expire_lease(lost.task_id, lost.token, attempt=lost.attempt, policy=lost.policy, epoch=epoch)
            for lost in await self.expired()
        ])  # fmt: skip


def retry(claim: Claimed, delay_ms: int | None = None) -> Change:
    """The attempt failed and is worth another one."""
    return lifecycle.fail(
        claim.task_id,
        claim.token,
        FAILURE,
        attempt=claim.attempt,
        policy=claim.policy,
        retryable=True,
        random_unit=0.0,
        retry_in_ms=delay_ms,
    )


def give_up(claim: Claimed) -> Change:
    """The attempt failed for good."""
    return lifecycle.fail(
        claim.task_id,
        claim.token,
        FAILURE,
        attempt=claim.attempt,
        policy=claim.policy,
        retryable=False,
        random_unit=0.0,
    )


def ack(claim: Claimed, result: bytes | None = b"1") -> Change:
    """The attempt succeeded."""
    return lifecycle.ack(claim.task_id, claim.token, result)


def every_settlement(claim: Claimed) -> dict[str, Change]:
    """Each way in which a holder can end its claim, by name."""
    return {
        "ack": ack(claim),
        "retry": retry(claim, 5_000),
        "give up": give_up(claim),
        "snooze": lifecycle.snooze(claim.task_id, claim.token, 5_000),
        "release": lifecycle.release(claim.task_id, claim.token),
        "stop": lifecycle.stop(claim.task_id, claim.token, "asked to"),
        "lose": lifecycle.lose(claim.task_id, claim.token, "worker_lost", attempt=claim.attempt, policy=claim.policy),
    }


def every_minute(name: str = "nightly", queue: str = "default", **fields: Any) -> Schedule:
    """A schedule of a plain task every minute: version 1, no next occurrence, unless `fields` say so."""
    return Schedule(
        name=name, timing=Timing(every_ms=60_000), call=ScheduledCall(type="kit.work", queue=queue), **fields
    )


def next_version(schedule: Schedule, **fields: Any) -> Schedule:
    """The schedule that may replace this one."""
    return replace(schedule, version=schedule.version + 1, **fields)
