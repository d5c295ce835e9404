"""What a caller may do to tasks that are named in a body or by an id.

A task in a queue that is not visible to the caller is answered like a task that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from msgspec.structs import replace

from holdfast.core.lifecycle import SETTLEMENTS, Change, Event
from holdfast.core.task import Claimed, Enqueued, Hold, Task
from holdfast.server.auth import Denied, Scope
from holdfast.server.checks import is_task_id
from holdfast.server.routing import Call
from holdfast.stores.capabilities import PartialView, in_part
from holdfast.stores.contract import QueueCounts, Store, WorkerRecord
from holdfast.stores.decorate import PassingStore
from holdfast.stores.remote import problems

_TAKEN: Final = "the id already stands for another task"
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class VisibleSubset(Generic[Item]):
    """The items that are visible to the caller, and the way back to an answer for each of all items."""

    __slots__ = ("_own", "items")

    def __init__(self, items: Sequence[Item], is_own: Callable[[Item], bool]) -> None:
        self._own = [is_own(item) for item in items]
        self.items = [item for item, own in zip(items, self._own, strict=True) if own]

    def with_others(self, answers: Sequence[Answer], unknown: Answer) -> list[Answer]:
        """The answers to the visible items, and between them this answer for each of the others."""
        left = iter(answers)
        return [next(left) if own else unknown for own in self._own]


class VisibleStore(PassingStore):
    """A store reduced to what is visible to the caller: its queues, and their workers."""

    def __init__(self, call: Call, store: Store | None = None) -> None:
        server = call.server
        super().__init__(store or (server.reads if call.store is server.store else call.store))
        self.capabilities = replace(self.capabilities, in_part=self._in_part)
        self._call = call

    def _in_part(self, *, until_deadline: bool = False) -> PartialView:
        view = in_part(self.inner, until_deadline=until_deadline)
        return PartialView(VisibleStore(self._call, view.store), view.left_out)

    async def counts(self) -> list[QueueCounts]:
        """Depths of their queues."""
        return [counts for counts in await self.inner.counts() if self._call.may(counts.queue)]

    async def workers(self) -> list[WorkerRecord]:
        """Workers of their queues; what else these serve is not told."""
        found = await self.inner.workers()
        if self._call.caller.may(Scope.READ):
            return found
        own = [replace(worker, queues=tuple(filter(self._call.may, worker.queues))) for worker in found]
        return [worker for worker in own if worker.queues]


def demand_scope(call: Call, scope: Scope, what: str) -> None:
    """Refuses what needs a scope that the route alone does not ask for."""
    if not call.caller.may(scope):
        raise Denied(problems.FORBIDDEN.problem(f"{what} needs the scope {scope}"))


def demand_everywhere(call: Call, scope: Scope, what: str) -> None:
    """Refuses what needs a scope for all queues."""
    if not call.caller.may_everywhere(scope):
        raise Denied(problems.FORBIDDEN.problem(f"{what} needs the scope {scope}:*"))


def demand_queues(call: Call, queues: Iterable[str]) -> None:
    """Refuses a request about queues of which one is not the caller's."""
    for queue in dict.fromkeys(queues):
        call.demand(queue)


def visible(call: Call, tasks: Sequence[Task | None]) -> list[Task | None]:
    """The same tasks; those of foreign queues are not known."""
    if any(call.caller.may_everywhere(scope) for scope in call.rule.scopes):
        return list(tasks)
    return [task if task is not None and call.may(task.queue) else None for task in tasks]


def conflicts_of_own(call: Call, answers: Sequence[Enqueued]) -> list[Enqueued]:
    """The answers; that an id stands for another task tells nothing of that task, which may be in a foreign queue."""
    if call.caller.may_everywhere(Scope.ENQUEUE):
        return list(answers)
    return [answer if answer.conflict is None else replace(answer, conflict=_TAKEN) for answer in answers]


def handed_out(call: Call, tasks: Sequence[Claimed]) -> list[Claimed]:
    """The claimed tasks without those of foreign queues, which another worker has claimed under the same claim_id."""
    if call.caller.may_everywhere(Scope.WORK):
        return list(tasks)
    own = [task for task in tasks if call.caller.may(Scope.WORK, task.queue)]
    call.server.task_queues.learn(own)
    return own


async def own_changes(call: Call, changes: Sequence[Change]) -> VisibleSubset[Change]:
    """The changes to tasks that are the caller's business; a `Denied` if one is of a kind that is not."""
    for change in changes:
        _demand_kind(call, change)
    queues = await _queues(call, [change for change in changes if not _anywhere(call, change)], _task_id)
    return VisibleSubset(
        changes,
        lambda change: (
            is_task_id(change.task_id) if _anywhere(call, change) else _allows(call, change, queues.get(change.task_id))
        ),
    )


async def own_holds(call: Call, holds: Sequence[Hold]) -> VisibleSubset[Hold]:
    """The claims on tasks of queues that the caller works in."""
    if call.caller.may_everywhere(Scope.WORK):
        return VisibleSubset(holds, lambda hold: is_task_id(hold.task_id))
    queues = await _queues(call, holds, _task_id)
    return VisibleSubset(holds, lambda hold: call.caller.may(Scope.WORK, queues.get(hold.task_id, "")))


def _demand_kind(call: Call, change: Change) -> None:
    if change.epoch is not None:
        demand_scope(call, Scope.ADMIN, "a change by the leader")
    elif change.event in SETTLEMENTS:
        demand_scope(call, Scope.WORK, "to settle a claim")
    elif change.event is not Event.CANCEL:
        demand_scope(call, Scope.MANAGE, f"the change {change.event}")


def _anywhere(call: Call, change: Change) -> bool:
    """Whether the caller may make such a change in all queues, so that the queue of the task need not be known."""
    caller = call.caller
    if change.event in SETTLEMENTS:
        return caller.may_everywhere(Scope.WORK)
    return caller.may(Scope.MANAGE) or caller.may_everywhere(Scope.ENQUEUE)


def _allows(call: Call, change: Change, queue: str | None) -> bool:
    """Settling needs `work` for the queue; the only other change, to cancel, needs `enqueue`."""
    # By the event, not by the token: a made-up token is compared for settlements only.
    scope = Scope.WORK if change.event in SETTLEMENTS else Scope.ENQUEUE
    return queue is not None and call.caller.may(scope, queue)


async def _queues(call: Call, items: Sequence[Item], task_id: Callable[[Item], str]) -> Mapping[str, str]:
    return await call.server.task_queues.of([task_id(item) for item in items]) if items else {}


def _task_id(item: Change | Hold) -> str:
    return item.task_id
