"""What the state machine stands on: the opened stores, the model, and the comparison after every step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine, invariant

from holdfast.core.ids import IdSource
from holdfast.core.lifecycle import Change
from holdfast.core.task import Claimed, NewTask
from holdfast.stores.contract import MAINTENANCE, Placement, Reserve, Store
from holdfast.testing.kit.expect import expect, expect_true
from holdfast.testing.kit.harness import StoreHarness
from holdfast.testing.kit.model.oracle import Model

Answer = TypeVar("Answer")
_FOR_EVER_MS = 1 << 40


class Bench(RuleBasedStateMachine):
    """One store, opened by two processes, and the model beside it."""

    def new_harness(self) -> StoreHarness:
        """A fresh harness for one example; `state_machine` fills this in."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.harness = self.new_harness()
        self.clock = self.harness.clock
        self.model = Model(self.clock)
        serial = iter(range(1, 1 << 30))
        self.ids = IdSource(self.clock.now_ms, lambda size: next(serial).to_bytes(size, "big"))
        self.sent: list[NewTask] = []
        self.claims: list[Claimed] = []
        self.reserves: list[tuple[Reserve, list[Change]]] = []
        self.changes: list[list[Change]] = []
        self.owners = 0
        self.stores: list[Store] = []
        self.place: Placement = lambda _queue, _request_id: 0

    def start(self) -> None:
        """Opens the store once, or twice if it can."""
        self.stores = [self.do(self.harness.open()) for _ in range(1 + self.harness.persistent)]
        self.place = self.do(self.store.placement())
        self.change_leader()

    def teardown(self) -> None:
        """Closes everything and deletes the data."""
        for store in self.stores:
            self.do(store.close())
        self.do(self.harness.destroy())
        self.runner.close()

    @property
    def store(self) -> Store:
        """The opened store that the next call goes through."""
        return self.stores[0]

    def do(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        """The answer of one call, on the one event loop of this machine."""
        return self.runner.run(call)

    def same(
        self, what: str, model: Callable[[], Answer], store: Callable[[], Coroutine[Any, Any, Answer]], lost: bool
    ) -> None:
        """Fails unless store and model answer alike, `lost` replies on the second call."""
        wanted, answer = model(), self.do(store())
        if lost:
            wanted, answer = model(), self.do(store())
        expect(what, answer, wanted)

    def task_id(self, pick: int) -> str:
        """Some task that was sent once, or an unknown one."""
        return self.sent[pick % len(self.sent)].task_id if self.sent and pick % 17 else f"{pick:032x}"

    def change_leader(self) -> None:
        """Another process becomes the leader of the maintenance, under a larger epoch."""
        if self.owners:
            asked = self.do(self.store.lead(MAINTENANCE, "another", _FOR_EVER_MS))
            expect("the leader stays", (asked.held, asked.owner), (False, f"owner-{self.owners}"))
            self.do(self.store.lead(MAINTENANCE, f"owner-{self.owners}", 0))
        self.owners += 1
        leadership = self.do(self.store.lead(MAINTENANCE, f"owner-{self.owners}", _FOR_EVER_MS))
        expect_true("the new owner leads", leadership.held)
        expect_true("the epoch has grown", leadership.epoch > self.model.epoch)
        self.model.epoch = leadership.epoch

    # -- after every step -----------------------------------------------------------------------------------

    @invariant()
    def store_equals_model(self) -> None:
        """Every task that was ever sent is what the model says, or gone if the model says so."""
        if not self.stores:
            return
        ids = list(dict.fromkeys(task.task_id for task in self.sent))
        for task_id, task in zip(ids, self.do(self.store.get(ids)), strict=True):
            self.model.expect_task(task, task_id)

    @invariant()
    def nothing_is_lost(self) -> None:
        """The counts are the model's, and every enqueued task is counted, discarded or pruned."""
        if not self.stores:
            return
        counts = self.do(self.store.counts())
        numbers = {entry.queue: {state: n for state, n in entry.states.items() if n} for entry in counts}
        expect("counts", numbers, self.model.counts())
        expect("paused queues", {entry.queue for entry in counts if entry.paused}, self.model.paused)
        steps = {entry.queue: entry.step_ms for entry in counts}
        expect("steps of queues", steps, {queue: self.model.step_ms(queue) for queue in numbers})
        oldest = {entry.queue: entry.oldest_ready_ms for entry in counts}
        expect("oldest ready tasks", oldest, {queue: self.model.oldest_ready_ms(queue) for queue in numbers})
        total = sum(n for states in numbers.values() for n in states.values())
        expect("enqueued tasks", total + self.model.discarded + self.model.pruned, self.model.enqueued)
