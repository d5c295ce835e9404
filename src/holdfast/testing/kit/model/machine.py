"""Random calls on a store, made on the model as well: here those about priorities and time."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from holdfast.core import lifecycle
from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.schedule.record import Schedule
from holdfast.core.task import NewTask
from holdfast.errors import StaleEpoch
from holdfast.stores import documents
from holdfast.testing.kit.expect import expect
from holdfast.testing.kit.harness import HarnessFactory
from holdfast.testing.kit.model import drawing
from holdfast.testing.kit.model.drawing import QUEUES, Draft, Plan
from holdfast.testing.kit.model.working import Working, picks, twice


def state_machine(factory: HarnessFactory) -> type[StoreMachine]:
    """The machine for the stores of one harness; run it with `hypothesis.stateful.run_state_machine_as_test`."""
    return type("StoreMachineOfHarness", (StoreMachine,), {"new_harness": lambda _self: factory()})


class _Put(NamedTuple):
    """A put as it was made, to be made again."""

    plan: Plan
    new: Schedule | None
    expected: int
    tasks: list[NewTask]


class StoreMachine(Working):
    """All rules: those of the work, and what people and the maintenance do about priorities and time."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[_Put] = []

    @rule(queue=st.sampled_from(QUEUES), step_ms=drawing.steps, wish=drawing.wishes)
    def set_step(self, queue: str, step_ms: int, wish: drawing.Wish) -> None:
        """Makes priority worth more or less in a queue, with a look at the order."""
        self.do(documents.set_step(self.store, queue, step_ms))
        self.model.steps[queue] = step_ms
        if step_ms == AGED_STEP_MS:
            del self.model.steps[queue]
        self.reserve(wish, [], lost=False)

    @rule(late=st.booleans(), began=st.sampled_from([False, False, True]), old_epoch=twice, lost=twice)
    def expire_unstarted(self, late: bool, began: bool, old_epoch: bool, lost: bool) -> None:
        """Cancels tasks that should have begun; some of them may begin in between, or the leader change."""
        self.clock.advance(self.model.next_deadline_ms() if late else 0)
        found = self.do(self.store.expired()).unstarted
        expect("tasks not started in time", sorted(found), sorted(self.model.unstarted()))
        if began:
            self.reserve(drawing.EVERYTHING, [], lost=False)
        epoch = self.model.epoch - old_epoch
        self.apply([lifecycle.expire(task_id, "not begun in time", epoch) for task_id in found], lost)

    # -- schedules ------------------------------------------------------------------------------------------

    @rule(
        plans=st.lists(drawing.plans, min_size=1, max_size=3), drafts=st.lists(drawing.drafts, max_size=2), lost=twice
    )
    def put_schedules(self, plans: list[Plan], drafts: list[Draft], lost: bool) -> None:
        """Makes, fires, edits or removes schedules, by their versions or by others, with the tasks of occurrences."""
        for plan in plans:
            expected = max(self.model.schedules.version(plan.name) + plan.off_by, 0)
            new = plan.schedule(expected, self.clock.now_ms())
            tasks = [] if new is None else [self._occurrence(draft, plan.queue) for draft in drafts]
            self.sent += tasks
            self.puts.append(_Put(plan, new, expected, tasks))
            for _ in range(1 + lost):
                self._put(self.puts[-1])

    @precondition(lambda self: self.puts)
    @rule(pick=picks)
    def put_schedule_again(self, pick: int) -> None:
        """Sends an earlier put again, most often the last one."""
        self._put(self.puts[-1 if pick % 2 else pick % len(self.puts)])

    def _occurrence(self, draft: Draft, queue: str) -> NewTask:
        """A task that lies where the schedules of its queue lie: with a request_id."""
        occurrence = replace(draft, queue=queue, request=draft.request % 3)
        return occurrence.task(self.new_id(occurrence), self.clock.now_ms())

    def _put(self, put: _Put) -> None:
        name, epoch = put.plan.name, None
        if put.plan.epoch_off_by is not None:
            epoch = self.model.epoch + put.plan.epoch_off_by
        try:
            answer = self.do(documents.put_schedule(self.store, name, put.new, put.expected, put.tasks, epoch))
        except StaleEpoch:
            expect("epoch", epoch in (None, self.model.epoch), False)
            return
        expect("epoch", epoch in (None, self.model.epoch), True)
        repeated = self.model.schedules.repeats(name, put.new, put.expected)
        done = repeated or self.model.schedules.put(name, put.new, put.expected)
        expect("put", answer, done)
        if done and not repeated:
            self.model.enqueue(put.tasks)
        self._compare_schedules(put.plan)

    def _compare_schedules(self, plan: Plan) -> None:
        now_ms, model = self.clock.now_ms(), self.model.schedules
        for within_ms in (plan.within_ms, None):
            answer = self.do(documents.schedules(self.store, within_ms))
            wanted = model.listed(None if within_ms is None else now_ms + within_ms)
            expect("store's time", answer.now_ms, now_ms)
            expect("occurrences", [each.next_at_ms for each in answer.schedules], [each.next_at_ms for each in wanted])
            expect("schedules", {each.name: each for each in answer.schedules}, {each.name: each for each in wanted})
        expect(f"schedule {plan.name}", self.do(documents.schedule(self.store, plan.name)), model.get(plan.name))
