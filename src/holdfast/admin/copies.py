"""Copies of tasks: a finished one runs again as a new task, a dead letter runs again with other arguments.

A signature is bound to the task_id, and encrypted arguments cannot be changed by those who cannot read them: a copy of
such a task needs the keys that it was enqueued with.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.admin.inspect import one_task
from holdfast.core import lifecycle, payload
from holdfast.core.names import suggestion
from holdfast.core.payload import SIGNATURE_HEADER, is_encrypted
from holdfast.core.schedule.occurrences import OCCURRENCE_HEADER, SCHEDULE_HEADER, TIMING_HEADER
from holdfast.core.task import FINAL_STATES, NewTask, State, Task
from holdfast.errors import BadOption, Refused, RequestConflict
from holdfast.security.crypto import PayloadCrypto
from holdfast.stores.contract import Store

#: Makes the id of a new task for a partition.
NewId = Callable[[int], str]
#: Arguments by name as they are to be, for those of a type: changed or refused.
CheckArguments = Callable[[str, dict[str, Any]], bytes]

#: What a copy does not take along: it is signed anew, and no occurrence of a schedule.
_OWN_HEADERS: Final = frozenset({SIGNATURE_HEADER, TIMING_HEADER, SCHEDULE_HEADER, OCCURRENCE_HEADER})
#: A changed dead letter waits this long until the one that it replaces is discarded; then it runs at once.
_REPLACING_MS: Final = 30_000


async def rerun(store: Store, task_id: str, new_id: NewId, crypto: PayloadCrypto | None = None) -> str:
    """Enqueues a finished task again, with its arguments and policy, as a new task; its id."""
    task = await one_task(store, task_id)
    if task.state not in FINAL_STATES:
        raise Refused(f"task {task_id} is {task.state}: only a task that has ended can be run again")
    place = await store.placement()
    new = _copied(task, new_id(place(task.queue, None)), _arguments(task, crypto), crypto)
    await store.enqueue([new])
    return new.task_id


async def replay_changed(
    store: Store,
    task_id: str,
    changes: Mapping[str, Any],
    new_id: NewId,
    *,
    crypto: PayloadCrypto | None = None,
    check: CheckArguments | None = None,
) -> str:
    """Enqueues a dead letter with some of its arguments changed, and discards it; the id of the new task.

    The new task is delayed until the dead letter is gone: if another caller has replayed or discarded that meanwhile,
    the new task is cancelled. The same call again, after a lost connection, makes no second task.
    """
    task = await one_task(store, task_id)
    if task.state is not State.DEAD_LETTERED:
        raise Refused(f"task {task_id} is {task.state}: only a dead letter can be replayed")
    arguments = changed_arguments(task, _arguments(task, crypto), changes, any_name=check is not None)
    data = check(task.type, arguments) if check else payload.encode(arguments, f"arguments of {task.type}")
    place, request_id = await store.placement(), f"replay-{task_id}"
    new = _copied(task, new_id(place(task.queue, request_id)), data, crypto, request_id)
    (answer,) = await store.enqueue([replace(new, delay_ms=_REPLACING_MS)])
    if answer.conflict is not None:
        raise RequestConflict(f"task {task_id} is being replayed with other arguments, as task {answer.task_id}")
    (gone,) = await store.apply([lifecycle.discard(task_id, f"replayed with other arguments as {answer.task_id}")])
    if not gone.applied:
        await store.apply([lifecycle.cancel(answer.task_id, f"task {task_id} was replayed or discarded meanwhile")])
        raise Refused(f"task {task_id} was replayed or discarded meanwhile; nothing was changed")
    await store.apply([lifecycle.reschedule(answer.task_id, 0)])
    return answer.task_id


def changed_arguments(task: Task, data: bytes, changes: Mapping[str, Any], *, any_name: bool) -> dict[str, Any]:
    """The arguments with these changes; `user.id` is inside of `user`. Without `any_name`, only those that it has."""
    try:
        arguments = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError:
        raise Refused(f"the arguments of task {task.task_id} are not a JSON object: they cannot be changed") from None
    changed = copy.deepcopy(arguments)
    for key, value in changes.items():
        *parents, name = key.split(".")
        inside: Any = changed
        for parent in parents:
            inside = inside.get(parent) if isinstance(inside, dict) else None
        if not isinstance(inside, dict):
            raise BadOption(f"args.{key}: {'.'.join(parents)} is not an object in the arguments of task {task.task_id}")
        if name not in inside and not any_name:
            raise BadOption(_unknown_argument(task, key, name, inside))
        inside[name] = value
    return changed


def _unknown_argument(task: Task, key: str, name: str, known: Mapping[str, Any]) -> str:
    meant = suggestion(name, known)
    hint = f"{meant} Otherwise " if meant else ""
    return (
        f"args.{key}: task {task.task_id} was enqueued without {name}, and no running worker publishes the "
        f"signature of {task.type}: {hint}use --app module:app, or start a worker that declares it"
    )


def _arguments(task: Task, crypto: PayloadCrypto | None) -> bytes:
    """The arguments as they were given, or `Refused` without the keys for them; `NotGenuine` for what others signed."""
    protected = is_encrypted(task.payload) or SIGNATURE_HEADER in task.headers
    if crypto is None and protected:
        how = "encrypted" if is_encrypted(task.payload) else "signed"
        raise Refused(f"task {task.task_id} is {how}: give --app, or set the keys of its app in HOLDFAST_KEYS")
    return task.payload if crypto is None else crypto.opened(task)


def _copied(
    task: Task, task_id: str, data: bytes, crypto: PayloadCrypto | None, request_id: str | None = None
) -> NewTask:
    new = NewTask(
        task_id=task_id,
        type=task.type,
        queue=task.queue,
        payload=data,
        headers={name: value for name, value in task.headers.items() if name not in _OWN_HEADERS},
        request_id=request_id,
        priority=task.priority,
        policy=task.policy,
    )
    return new if crypto is None else crypto.task(new)
