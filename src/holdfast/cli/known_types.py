"""What the running workers know, when there is no app at hand to ask."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import UnknownTaskType
from holdfast.stores.contract import WorkerRecord

_DEFAULT_QUEUE = "default"


def queue_for(type_name: str, queue: str | None, workers: Sequence[WorkerRecord], *, force: bool) -> str:
    """The queue to record a task of this type in; `UnknownTaskType` if no live worker would run it there."""
    if force:
        return queue or _DEFAULT_QUEUE
    alive = [worker for worker in workers if worker.alive]
    knowing = [worker for worker in alive if type_name in worker.types]
    if not knowing:
        raise UnknownTaskType(
            f"{_nobody_knows(type_name, alive)}; use --app module:app, or --force to record it anyway"
        )
    served = sorted({name for worker in knowing for name in worker.queues})
    if queue is None and len(served) == 1:
        return served[0]
    queue = queue or _DEFAULT_QUEUE
    if queue not in served:
        raise UnknownTaskType(
            f"no running worker that knows {type_name} serves queue {queue}; they serve {', '.join(served)}: "
            "use --queue, or --force to record it anyway"
        )
    return queue


def _nobody_knows(type_name: str, alive: Sequence[WorkerRecord]) -> str:
    if not alive:
        return f"no worker is running that could know the type {type_name}"
    names = sorted({name for worker in alive for name in worker.types})
    shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
    return f"no running worker knows the type {type_name}; they know {shown or 'none'}"
