"""Where faults strike: servers, workers, and the load that must come through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, Self

from tests.support import eventually

from chaos.faults import Deployment
from chaos.journal import Journal, Order, moment
from chaos.load import Load
from chaos.stale_settler import StaleSettler
from chaos.stresses import COMMON
from chaos.tasks import LATER_MS, make_app, type_of
from chaos.trace import Ran, count_runs
from chaos.workers import Workers
from holdfast import Holdfast, TaskHandle
from holdfast.core.ids import partition_of
from holdfast.errors import Refused

#: Faults of the workers, which strike on every deployment.
WORKER_FAULTS: Final = ("kill_worker", "freeze_worker")
#: This many orders and runs must come through between two faults, and this many of each kind that needs maintenance.
_PROGRESS: Final = 500
_PROGRESS_OF_A_KIND: Final = 3
_RECOVERY_SECONDS: Final = 60.0
#: How many orders that are sent here go into one call.
_BATCH: Final = 500


class Field:
    """As a context manager: the load begins at once, and ends with the block."""

    def __init__(self, deployment: Deployment, workers: Workers, journal: Journal, trace: Path) -> None:
        self.deployment = deployment
        self.workers = workers
        self.journal = journal
        self.ran = Ran(trace)
        self.directory = trace.parent
        self.random = Random(journal.seed)  # noqa: S311
        self.settler = StaleSettler(journal)
        self._trace = trace
        self._load: Load | None = None
        self._app: Holdfast | None = None

    # -- the load -------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._begin_load()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.end_load()

    def _begin_load(self) -> None:
        self._load = Load(self.deployment.url, self.journal, self.deployment.per_second, self.settler)
        self._load.start()

    def end_load(self) -> None:
        """Ends all that produces here; raises what went wrong inside."""
        load, app, self._load, self._app = self._load, self._app, None, None
        if app is not None:
            app.close()
        if load is not None:
            load.finish()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Only the block has the store open: workers and load end before it, and begin again after it."""
        self.end_load()
        count = self.workers.end()
        try:
            yield
        finally:
            self.workers.begin(count)
            self._begin_load()

    @property
    def app(self) -> Holdfast:
        """The app in which faults send tasks of their own."""
        if self._app is None:
            self._app, _ = make_app(self.deployment.url)
        return self._app

    def send(self, orders: Sequence[Order], batch_size: int = _BATCH) -> list[TaskHandle[Any]]:
        """Sends these orders, some at a time."""
        handles: list[TaskHandle[Any]] = []
        for first in range(0, len(orders), batch_size):
            batch = orders[first : first + batch_size]
            handles += self.app.enqueue_many([self._prepared(order) for order in batch])
            for order, handle in zip(batch, handles[first:], strict=True):
                self.journal.acknowledge(order, handle.task_id)
        return handles

    def _prepared(self, order: Order) -> Any:
        typed = type_of(self.app, order.kind).using(queue=order.queue, request_id=order.request_id)
        timed = typed.using(delay=LATER_MS / 1000) if order.kind == "later" else typed
        return timed.prepare(**order.arguments)

    def cancel_later(self) -> None:
        """Cancels the tasks that wait for their time and have not seen it come."""
        for order in list(self.journal.orders.values()):
            if order.kind == "later" and order.task_id is not None:
                try:
                    self.app.handle(order.task_id).cancel("the run is over")
                except Refused as error:  # it has run: R7 tells
                    self.journal.note("nemesis", str(error), order.task_id)

    # -- faults ---------------------------------------------------------------------------------------------

    def strike(self, name: str) -> None:
        """One fault; returns when it is healed and the load comes through again."""
        self.journal.faults.append((moment(), name))
        self.journal.note("nemesis", f"{name} begins")
        self.journal.note("nemesis", f"{name} is healed: {self._struck(name)}")
        self.wait_for_progress()

    def _struck(self, name: str) -> str:
        if name == "kill_worker":
            return self.workers.kill_one(self.random)
        if name == "freeze_worker":
            return self.workers.freeze_one(self.random)
        stress = {**COMMON, **self.deployment.stresses}.get(name)
        return stress(self) if stress else self.deployment.faults[name](self._key_in_use(), self.random)

    def wait_for_progress(self) -> None:
        """Returns when some more orders are acknowledged and some more tasks have run, of every kind."""
        begun, orders, runs = moment(), len(self.journal.acknowledged), count_runs(self._trace)

        def came_through() -> bool:
            if self._load is None or self._load.broken:
                return True
            acknowledged = len(self.journal.acknowledged) - orders
            return (
                acknowledged >= _PROGRESS
                and count_runs(self._trace) - runs >= _PROGRESS
                and all(self._came_through(kind, times, begun) for kind, times in (("delayed", 1), ("flaky", 2)))
            )

        try:
            eventually(came_through, _RECOVERY_SECONDS, "the load comes through again")
        except AssertionError:
            acknowledged, ran = len(self.journal.acknowledged) - orders, count_runs(self._trace) - runs
            kinds = [
                kind for kind, times in (("delayed", 1), ("flaky", 2)) if not self._came_through(kind, times, begun)
            ]
            text = f"only {acknowledged} orders and {ran} runs in {_RECOVERY_SECONDS:g} s after a fault was healed"
            self.journal.violated("R16 recovery", text + (f", and no {' and no '.join(kinds)} tasks" if kinds else ""))

    def wait_for_stale_claims(self) -> None:
        """Returns when the stale settler has claims to settle too late: a short run may end before it got one."""
        ready = f"the stale settler claims a task within {_RECOVERY_SECONDS:g} s"
        eventually(lambda: self._load is None or self._load.broken or self.settler.has_claims, _RECOVERY_SECONDS, ready)

    def _came_through(self, kind: str, times: int, begun: float) -> bool:
        """Whether some orders of this kind that were sent since then have run so often."""
        self.ran.read()
        orders = [order for order in list(self.journal.orders.values())[-50_000:] if order.kind == kind]
        sent = (order for order in orders if order.sent_at > begun and order.task_id is not None)
        return sum(self.ran.times(order.number) >= times for order in sent) >= _PROGRESS_OF_A_KIND

    def _key_in_use(self) -> str:
        """The key of the partition in which a task was just recorded."""
        known = [order.task_id for order in list(self.journal.orders.values())[-1_000:] if order.task_id]
        return f"{{hf:{partition_of(self.random.choice(known)) if known else 0}}}"
