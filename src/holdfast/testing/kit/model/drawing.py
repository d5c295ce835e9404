"""What the state machine draws: tasks, requests, endings, ages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.lifecycle import Change
from holdfast.core.priority import AGED_STEP_MS, STRICT_STEP_MS
from holdfast.core.retry import RunPolicy
from holdfast.core.schedule.record import Schedule, ScheduledCall
from holdfast.core.task import Claimed, Failure, NewTask
from holdfast.stores.contract import Reserve, Retention
from holdfast.testing.kit.kit import FOREIGN_TOKEN, every_minute

QUEUES: Final = ("a", "b")
TYPES: Final = ("kit.one", "kit.two")
KEYS: Final = ("k-1", "k-2")
_MANY: Final = 1_000_000


@dataclass(frozen=True)
class Draft:
    """A task to be, without its id."""

    type: str
    queue: str
    priority: int
    request: int
    payload: bytes
    delay_ms: int
    absolute: bool
    policy: RunPolicy

    @property
    def request_id(self) -> str | None:
        """Most tasks have none; the few that there are will meet."""
        return f"r-{self.request}" if self.request < 3 else None

    def task(self, task_id: str, now_ms: int) -> NewTask:
        """The envelope."""
        return NewTask(
            task_id=task_id,
            type=self.type,
            queue=self.queue,
            payload=self.payload,
            headers={"made": "by chance"} if self.absolute else {},
            request_id=self.request_id,
            priority=self.priority,
            policy=self.policy,
            delay_ms=0 if self.absolute else self.delay_ms,
            run_at_ms=now_ms + self.delay_ms if self.absolute else None,
        )


def altered(task: NewTask) -> NewTask:
    """The same ids for another call."""
    return replace(task, payload=b'{"other":true}')


_ages = st.sampled_from([10**12, 10**12, 10**12, 10**12, 0, 1_000])
policies = st.builds(
    RunPolicy,
    max_attempts=st.integers(1, 3),
    base_ms=st.sampled_from([10, 1_000]),
    cap_ms=st.just(5_000),
    jitter=st.sampled_from([0.0, 0.5]),
    dead_letter=st.booleans(),
    expires_ms=st.sampled_from([None, None, None, 10, 1_000, 60_000]),
    result_ttl_ms=_ages,
    dead_letter_ttl_ms=_ages,
)
drafts = st.builds(
    Draft,
    type=st.sampled_from(TYPES),
    queue=st.sampled_from(QUEUES),
    priority=st.sampled_from([0, 0, 1, 5, -3]),
    request=st.integers(0, 9),
    payload=st.sampled_from([b"{}", '{"ä":1}'.encode()]),
    delay_ms=st.sampled_from([0, 0, 0, 0, 1, 50, 70_000]),
    absolute=st.booleans(),
    policy=policies,
)
times_to_live = st.sampled_from([10, 1_000, 60_000])
leases = st.sampled_from([10, 1_000, 60_000])


@dataclass(frozen=True)
class Wish:
    """A reserve request to be, without its claim_id."""

    worker: int
    shares: list[tuple[str, int]]
    max_tasks: int
    lease_ms: int
    types: frozenset[str] | None

    def request(self, claim_id: str) -> Reserve:
        """The request."""
        return Reserve(
            claim_id=claim_id,
            worker_id=f"worker-{self.worker}",
            shares=[QueueShare(queue, min(limit, self.max_tasks)) for queue, limit in self.shares],
            max_tasks=self.max_tasks,
            lease_ms=self.lease_ms,
            types=self.types,
        )


EVERYTHING: Final = Wish(1, [(queue, 9) for queue in QUEUES], 9, 60_000, None)
_limits = st.tuples(st.sampled_from(QUEUES), st.sampled_from([9, 9, 1, 2, 0]))
wishes = st.just(EVERYTHING) | st.builds(
    Wish,
    worker=st.integers(1, 2),
    shares=st.lists(_limits, min_size=1, unique_by=lambda share: share[0]),
    max_tasks=st.sampled_from([5, 5, 1, 2, 3, 0]),
    lease_ms=leases,
    types=st.sampled_from([None, None, None, frozenset(TYPES), frozenset(TYPES[:1]), frozenset(TYPES[1:])]),
)


@dataclass(frozen=True)
class Ending:
    """A settlement to be: how to end which claim, and what is wrong with it."""

    kind: str
    pick: int
    #: Choose among all claims that ever were, not among the current ones.
    old: bool
    #: The token is not the claim's.
    foreign: bool
    old_epoch: bool
    random_unit: float

    def change(self, claim: Claimed, epoch: int) -> Change:
        """The change."""
        change = self._change(claim, epoch - self.old_epoch)
        return replace(change, token=FOREIGN_TOKEN) if self.foreign else change

    def _change(self, claim: Claimed, epoch: int) -> Change:
        task_id, token, attempt, policy = claim.task_id, claim.token, claim.attempt, claim.policy
        if self.kind in ("retry", "give up"):
            return lifecycle.fail(
                task_id,
                token,
                Failure("builtins.ValueError", f"number {self.pick}"),
                attempt=attempt,
                policy=policy,
                retryable=self.kind == "retry",
                random_unit=self.random_unit,
            )
        simple = {
            "ack": lifecycle.ack(task_id, token, b"1" * (self.pick * 2) if self.pick % 3 else None),
            "snooze": lifecycle.snooze(task_id, token, self.pick),
            "release": lifecycle.release(task_id, token),
            "stop": lifecycle.stop(task_id, token, "stopped"),
            "lose": lifecycle.lose(task_id, token, "worker_lost", attempt=attempt, policy=policy),
            "expire lease": lifecycle.expire_lease(task_id, token, attempt=attempt, policy=policy, epoch=epoch),
        }
        return simple[self.kind]


endings = st.builds(
    Ending,
    kind=st.sampled_from(["ack", "retry", "give up", "release", "snooze", "stop", "lose", "expire lease"]),
    pick=st.integers(0, 999),
    old=st.sampled_from([False, False, False, True]),
    foreign=st.sampled_from([False, False, False, True]),
    old_epoch=st.sampled_from([False, False, False, True]),
    random_unit=st.floats(0, 1, exclude_max=True, width=32),
)
retentions = st.builds(
    Retention,
    keep=st.sampled_from([_MANY, _MANY, 0, 1, 3]),
    discards_ms=st.just(10**12),
)


steps = st.sampled_from([AGED_STEP_MS, STRICT_STEP_MS, 1_000])


@dataclass(frozen=True)
class Plan:
    """A put of a schedule to be, without its version."""

    name: str
    queue: str
    removes: bool
    paused: bool
    #: How long until its next occurrence; negative for one that was missed.
    occurs_in_ms: int
    #: How far to look ahead after it.
    within_ms: int
    #: Beside the version, and beside the epoch; None for no epoch at all.
    off_by: int
    epoch_off_by: int | None

    def schedule(self, expected: int, now_ms: int) -> Schedule | None:
        """The schedule that is to follow the expected version, None for its removal."""
        if self.removes:
            return None
        call = ScheduledCall(
            type=TYPES[0], queue=self.queue, priority=self.occurs_in_ms % 7, headers={"made": "by chance"}
        )
        next_at_ms = None if self.paused else now_ms + self.occurs_in_ms
        return replace(
            every_minute(self.name), call=call, paused=self.paused, next_at_ms=next_at_ms, version=expected + 1
        )


plans = st.builds(
    Plan,
    name=st.sampled_from(["s-1", "s-2"]),
    queue=st.sampled_from(QUEUES),
    removes=st.sampled_from([False, False, False, False, True]),
    paused=st.sampled_from([False, False, False, True]),
    occurs_in_ms=st.sampled_from([0, -10, 10, 1_000, 60_000]),
    within_ms=st.sampled_from([0, 9, 10, 990, 60_000]),
    off_by=st.sampled_from([0, 0, 0, 0, 1, -1]),
    epoch_off_by=st.sampled_from([None, None, 0, 0, -1, 1]),
)
