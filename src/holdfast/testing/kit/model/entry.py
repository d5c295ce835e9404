"""One task of the model, and its comparison with the store's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.core.lifecycle import Event, Standing, sources
from holdfast.core.priority import AGED_STEP_MS, rank
from holdfast.core.task import Attempt, Claimed, NewTask, State, Task
from holdfast.testing.kit.expect import expect


@dataclass
class Entry:
    """One task of the model."""

    envelope: NewTask
    standing: Standing
    seq: int
    created_at_ms: int
    #: Never claimed, delayed or replayed, and not sent again after it was discarded, under an id older than those of
    #: tasks that came before it: first come, first served among these is exact.
    fresh: bool
    claim: Claimed | None = None
    claim_id: str = ""
    worker_id: str = ""
    claimed_at_ms: int = 0
    progress: bytes | None = None
    result: bytes | None = None
    history: list[Attempt] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    def rank(self, steps: Mapping[str, int]) -> int:
        """Its place in the queue, with what a level of priority is worth there."""
        step_ms = steps.get(self.envelope.queue, AGED_STEP_MS)
        return rank(self.standing.run_at_ms, self.standing.priority, step_ms)

    @property
    def expires_at_ms(self) -> int | None:
        """Its deadline to start, None once that does not count any more."""
        expires_ms = self.envelope.policy.expires_ms
        counts = self.standing.state in sources(Event.EXPIRE) and not self.standing.deliveries
        return self.created_at_ms + expires_ms if counts and expires_ms is not None else None

    def expect_equal(self, task: Task) -> None:
        """Fails unless the store's task is this one."""
        standing, envelope = self.standing, self.envelope
        for name in (
            "state",
            "run_at_ms",
            "attempt",
            "deliveries",
            "cancel_requested",
            "finished_at_ms",
            "reason",
            "priority",
        ):
            expect(f"{name} of {task.task_id}", getattr(task, name), getattr(standing, name))
        for name in ("task_id", "type", "queue", "payload", "headers", "policy", "request_id"):
            expect(f"{name} of {task.task_id}", getattr(task, name), getattr(envelope, name))
        expect(f"history of {task.task_id}", task.history, tuple(self.history))
        expect(f"result of {task.task_id}", task.result, self.result)
        if standing.state is State.CLAIMED:
            holder = (self.worker_id, self.claimed_at_ms, standing.lease_expires_at_ms)
            expect(f"holder of {task.task_id}", (task.worker_id, task.claimed_at_ms, task.lease_expires_at_ms), holder)
            expect(f"progress of {task.task_id}", task.progress, self.progress or task.progress)
