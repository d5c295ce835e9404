"""`app.workers`: the workers of the store, and what an operator may want of them, from the code of an app."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.admin import workers as admin
from holdfast.errors import BadOption
from holdfast.producer.portal import StoreLink
from holdfast.stores.contract import WorkerRecord


class WorkerInfo:
    """One worker, as it was when the store was asked; times are in UTC.

    `to_dict()` is its JSON form, the same as in `--json`.
    """

    __slots__ = ("record",)

    def __init__(self, record: WorkerRecord) -> None:
        #: What the store has of it.
        self.record = record

    @property
    def worker_id(self) -> str:
        """Its id, which the log of the worker and the history of its tasks have too."""
        return self.record.worker_id

    @property
    def host(self) -> str:
        """The machine that it runs on."""
        return self.record.host

    @property
    def pid(self) -> int:
        """The process id of its supervisor on that machine."""
        return self.record.pid

    @property
    def version(self) -> str:
        """The version of Holdfast that it runs."""
        return self.record.version

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that it serves."""
        return self.record.queues

    @property
    def types(self) -> tuple[str, ...]:
        """The task types that it knows."""
        return self.record.types

    @property
    def slots(self) -> int:
        """How many tasks it runs at once, in all of its processes."""
        return self.record.processes * self.record.concurrency

    @property
    def running(self) -> int:
        """How many tasks it runs."""
        return self.record.running

    @property
    def runs_last_minute(self) -> int:
        """How many runs have ended in the last minute."""
        return self.record.ended_last_minute

    @property
    def memory_bytes(self) -> int:
        """The memory of all its processes."""
        return self.record.memory_bytes

    @property
    def status(self) -> Literal["running", "draining", "gone"]:
        """`draining`: it claims no more tasks; `gone`: it has not been heard of in time."""
        return self.record.status if self.record.alive else "gone"

    @property
    def alive(self) -> bool:
        """Whether it has been heard of in time."""
        return self.record.alive

    @property
    def started_at(self) -> datetime:
        """When it started."""
        return self.record.started_at

    @property
    def seen_at(self) -> datetime:
        """When it was heard of last."""
        return self.record.seen_at

    def to_dict(self) -> dict[str, Any]:
        """The JSON form as a dict of JSON values; times are milliseconds since 1970."""
        form: dict[str, Any] = msgspec.to_builtins(self.record)
        return form

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """As pairs, for `dict(worker)`, which FastAPI makes of what a route returns."""
        return iter(self.to_dict().items())

    def __eq__(self, other: object) -> bool:
        return self.record == other.record if isinstance(other, WorkerInfo) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.record.worker_id)

    def __repr__(self) -> str:
        return f"<WorkerInfo {self.worker_id} {self.status}>"


#: A worker by its id or the beginning of it, or as it was listed.
WorkerRef = str | WorkerInfo


class Workers:
    """What `app.workers` gives: list, drain, resume and stop the workers of the store."""

    __slots__ = ("_link",)

    def __init__(self, link: StoreLink) -> None:
        self._link = link

    async def alist(self) -> list[WorkerInfo]:
        """The workers that have been heard of, running ones first; `alive` is False for those that are gone."""
        return [WorkerInfo(record) for record in await admin.current_workers(self._link.store())]

    async def adrain(self, *workers: WorkerRef, all: bool = False) -> list[str]:  # noqa: A002
        """Lets these workers, or all, claim no more tasks; running tasks continue. From their next heartbeat on."""
        return await self._order(workers, all, "drain")

    async def aresume(self, *workers: WorkerRef, all: bool = False) -> list[str]:  # noqa: A002
        """Lets drained workers claim tasks again, from their next heartbeat on; gives their ids."""
        return await self._order(workers, all, "run")

    async def astop(self, *workers: WorkerRef, all: bool = False) -> list[str]:  # noqa: A002
        """Shuts these workers, or all, down gracefully, from their next heartbeat on; gives their ids."""
        return await self._order(workers, all, "stop")

    # -- the same for sync callers --------------------------------------------------------------------------

    def list(self) -> builtins.list[WorkerInfo]:
        """The workers that have been heard of, running ones first; `alive` is False for those that are gone."""
        return self._link.run(self.alist())

    def drain(self, *workers: WorkerRef, all: bool = False) -> builtins.list[str]:  # noqa: A002
        """Lets these workers, or all, claim no more tasks; running tasks continue. From their next heartbeat on."""
        return self._link.run(self.adrain(*workers, all=all))

    def resume(self, *workers: WorkerRef, all: bool = False) -> builtins.list[str]:  # noqa: A002
        """Lets drained workers claim tasks again, from their next heartbeat on; gives their ids."""
        return self._link.run(self.aresume(*workers, all=all))

    def stop(self, *workers: WorkerRef, all: bool = False) -> builtins.list[str]:  # noqa: A002
        """Shuts these workers, or all, down gracefully, from their next heartbeat on; gives their ids."""
        return self._link.run(self.astop(*workers, all=all))

    async def _order(
        self, workers: tuple[WorkerRef, ...], everyone: bool, mode: Literal["run", "drain", "stop"]
    ) -> builtins.list[str]:
        if bool(workers) == everyone:
            raise BadOption("name the workers, or give all=True for all that run")
        names = [each.worker_id if isinstance(each, WorkerInfo) else each for each in workers]
        return await admin.set_mode(self._link.store(), names, mode)
