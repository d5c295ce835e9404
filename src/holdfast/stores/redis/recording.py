"""What makes tasks: enqueue, and the ticks of schedules."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.clock import Clock, SystemClock
from holdfast.core.schedule import Schedule
from holdfast.core.task import Enqueued, NewTask
from holdfast.errors import DurabilityUnknown, StoreError
from holdfast.stores.redis import reading, sending
from holdfast.stores.redis.calling import MAX_TASKS, STALE_MAP, Calling, chunks, current
from holdfast.stores.redis.clients import Word
from holdfast.stores.redis.replay import ReplayWindow
from holdfast.stores.redis.scripts import script

if TYPE_CHECKING:
    from holdfast.stores.redis.link import Link

_log = logging.getLogger(__name__)


class Recording(Calling):
    """The part of the store that makes tasks, and remembers the last of them for a server that forgets them."""

    def __init__(self, link: Link, *, prefix: str, clock: Clock, partition: int = 0) -> None:
        super().__init__(link, prefix=prefix, clock=clock, partition=partition)
        self._window = ReplayWindow(SystemClock().monotonic_ms)

    async def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """Records tasks; as safe as the durability level says when it returns."""
        if not tasks:
            return []
        floor = self._window.floor
        number, answers = await self._enqueue(tasks)
        await self._mend(floor, number)
        self._window.remember(tasks, number)
        return answers

    def enqueue_now(self, tasks: Sequence[NewTask]) -> list[Enqueued] | None:
        """Records a few tasks if the server simply says so; a server that has lost its tail is left to `enqueue`."""
        if len(tasks) > MAX_TASKS or self._window.lost is not None:
            return None
        floor = self._window.floor
        reply = self._link.call_now(script("enqueue"), self._base, self._enqueue_args(tasks))
        if reply is None or reply[0] == STALE_MAP or int(reply[0]) < floor:
            return None
        number, *rows = reply
        self._window.remember(tasks, int(number))
        return [reading.enqueued(task, row) for task, row in zip(tasks, rows, strict=True)]

    async def put_schedule(
        self, name: str, new: Schedule | None, expected: int, tasks: Sequence[NewTask] = (), epoch: int | None = None
    ) -> bool:
        """Replaces a schedule and records its tasks in one script; as safe as the durability level says."""
        floor = self._window.floor
        change = (self.map_version, "" if epoch is None else epoch, name, expected, *sending.schedule(new))
        try:
            if tasks:
                reply = await self._call("tick", *change, *sending.tasks(tasks), safe=True)
            else:
                reply = await self._call("put_schedule", *change, safe=True)
        except DurabilityUnknown as error:
            raise DurabilityUnknown(f"schedule {name!r}: {error}") from error
        done, *numbers = current(self._unless_stale(reply), epoch)
        if done and tasks:
            await self._mend(floor, numbers[0])
            self._window.remember(tasks, numbers[0])
        return bool(done)

    async def _enqueue(self, tasks: Sequence[NewTask]) -> tuple[int, list[Enqueued]]:
        calls = [self._enqueue_args(chunk) for chunk in chunks(tasks)]
        try:
            replies = await self._link.calls(script("enqueue"), self._base, calls, safe=True)
        except DurabilityUnknown as error:
            raise DurabilityUnknown(f"{_named(tasks)}: {error}") from error
        rows = [row for reply in replies for row in self._unless_stale(reply)[1:]]
        return int(replies[-1][0]), [reading.enqueued(task, row) for task, row in zip(tasks, rows, strict=True)]

    def _enqueue_args(self, tasks: Sequence[NewTask]) -> tuple[Word, ...]:
        return (self._now(), self.map_version, *sending.tasks(tasks))

    async def _mend(self, floor: int, number: int) -> bool:
        """If the server has lost its tail, records again what this process knows to be acknowledged; True if it did."""
        lost = self._window.notice(floor, number)
        if lost:
            _log.error("%s lost what it had acknowledged; sending the last %d tasks again", self.url, lost)
        mended = False
        while (batch := self._window.lost) is not None:
            try:
                again, _ = await self._enqueue(batch)
            except StoreError as error:
                # Whose call this is has nothing to do with it; the batch stays, and the next call tries again.
                _log.warning("%s: sending again what was lost: %s", self.url, error)
                break
            self._window.found(batch, again)
            mended = True
        return mended


def _named(tasks: Sequence[NewTask]) -> str:
    others = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
    return f"task {tasks[0].task_id}{others}"
