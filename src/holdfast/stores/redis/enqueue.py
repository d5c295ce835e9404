"""One partition on a server: the calls of its scripts, and enqueueing, which survives a server that loses its tail."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.clock import Clock, SystemClock
from holdfast.core.task import Enqueued, NewTask
from holdfast.errors import DurabilityUnknown, StaleEpoch, StoreError, StoreFull
from holdfast.stores.capabilities import Capabilities
from holdfast.stores.decorate import SinglePartition, stale_map
from holdfast.stores.redis import arguments, replies
from holdfast.stores.redis.connection import Word
from holdfast.stores.redis.errors import store_full
from holdfast.stores.redis.keys import partition_key
from holdfast.stores.redis.replay import ReplayWindow
from holdfast.stores.redis.scripts import script

if TYPE_CHECKING:
    from holdfast.stores.redis.link import Link

_log = logging.getLogger(__name__)

#: The tasks of one script: a longer one would hold up all other callers. Only a reserve must stay whole, since a repeat
#: with its claim_id has to find all of it, and the occurrences of a schedule; workers ask for as many tasks as they
#: have free slots.
MAX_TASKS: Final = 200
#: The payloads of one script.
_PART_BYTES: Final = 4 * 1024 * 1024
#: What a task takes on the server beside its payload, generously.
_TASK_BYTES: Final = 1_024
#: After its deadline, a call is not repeated any more.
_REPEAT_MS: Final = 10_000
_STALE_MAP: Final = b"stale_map"
_REFUSED: Final = b"refused"


class EnqueuePartition(SinglePartition):
    """Runs scripts on one partition, and remembers the last tasks that it enqueued."""

    def __init__(self, link: Link, *, prefix: str, clock: Clock, partition: int = 0) -> None:
        self.url = link.url
        self.partition = partition
        self.capabilities = Capabilities(enqueue_now=self._enqueue_now)
        self._link = link
        self._base = partition_key(prefix, partition)
        #: Only the stepped clock of a test is sent along; otherwise the server's own decides.
        self._clock = None if isinstance(clock, SystemClock) else clock
        self._window = ReplayWindow(SystemClock().monotonic_ms)
        #: The newest map by which a caller has chosen this partition: what was lost is enqueued again by that one.
        self._map_version = 0

    # -- calls of scripts -----------------------------------------------------------------------------------

    async def _call(self, name: str, *args: Word, safe: bool = False) -> Any:
        return await self._link.call(script(name), self._base, (self._now(), *args), safe=safe)

    def _now(self) -> str:
        return "" if self._clock is None else str(self._clock.now_ms())

    def _unless_stale(self, reply: Any) -> Any:
        """The reply, if the call was not refused for being routed by an old map."""
        if reply[0] == _STALE_MAP:
            raise stale_map(self.url, reply[1])
        return reply

    # -- enqueueing -----------------------------------------------------------------------------------------

    async def enqueue(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued]:
        """Enqueues tasks; as safe as the durability level says when it returns."""
        if not tasks:
            return []
        self._map_version = max(self._map_version, map_version)
        lowest = self._window.lowest
        number, answers = await self._enqueue_one(tasks, map_version) or await self._enqueue(tasks, map_version)
        await self._restore(lowest, number)
        self._window.remember(tasks, number)
        return answers

    def _enqueue_now(self, tasks: Sequence[NewTask], *, map_version: int = 0) -> list[Enqueued] | None:
        """Enqueues a few tasks if the server simply says so; a server that has lost its tail is left to `enqueue`."""
        if self._window.lost is not None or len(_parts(tasks)) > 1:
            return None
        lowest = self._window.lowest
        one = self._one_args(tasks, map_version)
        if one is not None and (number := self._link.call_now(script("enqueue_one"), self._base, one)) != 0:
            if number is None or number < lowest:
                return None
            self._window.remember(tasks, number)
            return [Enqueued(tasks[0].task_id, created=True)]
        reply = self._link.call_now(script("enqueue"), self._base, self._enqueue_args(tasks, map_version))
        if reply is None or reply[0] == _STALE_MAP or int(reply[0]) < lowest:
            return None
        self._window.remember(tasks, int(reply[0]))
        return [replies.enqueued(task, row) for task, row in zip(tasks, reply[1:], strict=True)]

    async def _enqueue_one(self, tasks: Sequence[NewTask], map_version: int) -> tuple[int, list[Enqueued]] | None:
        """Enqueues a single task by the short script; None if that is not the way for it."""
        args = self._one_args(tasks, map_version)
        if args is None:
            return None
        try:
            number = await self._link.call(script("enqueue_one"), self._base, args, safe=True)
        except StoreFull:
            return None
        except DurabilityUnknown as error:
            raise DurabilityUnknown(f"{_named(tasks)}: {error}") from error
        return (number, [Enqueued(tasks[0].task_id, created=True)]) if number else None

    async def _enqueue(self, tasks: Sequence[NewTask], map_version: int) -> tuple[int, list[Enqueued]]:
        parts = _parts(tasks)
        try:
            answers = await self._enqueue_parts(parts, map_version)
        except DurabilityUnknown as error:
            raise DurabilityUnknown(f"{_named(tasks)}: {error}") from error
        self._unless_stale(answers[0])
        if any(answer[0] == _REFUSED for answer in answers):
            raise StoreFull(store_full(self.url))
        rows = [row for answer in answers for row in answer[1:]]
        return int(answers[-1][0]), [replies.enqueued(task, row) for task, row in zip(tasks, rows, strict=True)]

    async def _enqueue_parts(self, parts: Sequence[Sequence[NewTask]], map_version: int) -> list[Any]:
        if len(parts) == 1:
            try:
                args = self._enqueue_args(parts[0], map_version)
                return await self._link.calls(script("enqueue"), self._base, [args], safe=True)
            except StoreFull:
                # A try whose reply was lost may have enqueued them: what is there needs no room.
                pass
        args_of_parts = self._part_args(parts, map_version)
        return await self._link.calls(script("enqueue_part"), self._base, args_of_parts, safe=True)

    def _one_args(self, tasks: Sequence[NewTask], map_version: int) -> tuple[Word, ...] | None:
        """The arguments of the short script; None for several tasks, and for one that it cannot enqueue."""
        task = arguments.one_task(tasks[0]) if len(tasks) == 1 else None
        return None if task is None else (self._now(), map_version, *task)

    def _enqueue_args(self, tasks: Sequence[NewTask], map_version: int) -> tuple[Word, ...]:
        return (self._now(), map_version, *arguments.tasks(tasks))

    def _part_args(self, parts: Sequence[Sequence[NewTask]], map_version: int) -> list[tuple[Word, ...]]:
        """The arguments of each part; the name of the batch is the same when they are sent again."""
        name, repeated_ms = secrets.token_hex(8), self._link.settings.deadline_ms + _REPEAT_MS
        room = sum(_TASK_BYTES + len(task.payload) for part in parts for task in part)
        begin = (self._now(), map_version, name)
        return [(*begin, n, room, repeated_ms, *arguments.tasks(part)) for n, part in enumerate(parts, 1)]

    async def _restore(self, lowest: int, number: int) -> bool:
        """If the server has lost its tail, enqueues again what it acknowledged to this process; True if it did."""
        lost = self._window.notice(lowest, number)
        if lost:
            _log.error("%s lost what it had acknowledged; sending the last %d tasks again", self.url, lost)
        restored = False
        while (batch := self._window.lost) is not None:
            try:
                again, _ = await self._enqueue(batch, self._map_version)
            except StoreError as error:
                # The caller's own call has succeeded; the batch stays, and the next call tries again.
                _log.warning("%s: sending again what was lost: %s", self.url, error)
                break
            self._window.found(batch, again)
            restored = True
        return restored


def unless_stale_epoch(reply: Sequence[Any], epoch: int | None) -> Sequence[Any]:
    """The reply, if the call was not refused for being of an old epoch."""
    if reply[0] < 0:
        raise StaleEpoch(f"the leader of the maintenance has epoch {reply[1]} now, this call is of epoch {epoch}")
    return reply


def chunks(items: Sequence[Any]) -> list[Sequence[Any]]:
    """The items in parts that one script may handle."""
    return [items[first : first + MAX_TASKS] for first in range(0, len(items), MAX_TASKS)]


def _parts(tasks: Sequence[NewTask]) -> Sequence[Sequence[NewTask]]:
    """The tasks in parts that one script may enqueue."""
    if len(tasks) == 1:
        return [tasks]
    parts: list[list[NewTask]] = []
    room = 0
    for task in tasks:
        room -= len(task.payload)
        if not parts or room < 0 or len(parts[-1]) >= MAX_TASKS:
            parts.append([])
            room = _PART_BYTES - len(task.payload)
        parts[-1].append(task)
    return parts


def _named(tasks: Sequence[NewTask]) -> str:
    others = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
    return f"task {tasks[0].task_id}{others}"
