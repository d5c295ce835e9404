"""Moves the messages of Celery's queues on Redis into a Holdfast store: none lost, none twice.

A message goes from its list to a holding list in one step, then into the store under its Celery id as request_id,
then out of the holding list. After a crash the holding list is read first: what the store has already is not
enqueued again. Messages that only Celery can handle wait in a second list and return to the first one at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.app import Holdfast
from holdfast.contrib.celery.messages import (
    ID_HEADER,
    RETRIES_HEADER,
    CannotMove,
    Message,
    names_in,
    read,
    text_headers,
    unmarked,
)
from holdfast.errors import BadUrl, RequestConflict, StoreUnavailable, UsageError
from holdfast.producer.enqueue import Prepared
from holdfast.producer.task_type import TaskType
from holdfast.stores.urls import hidden

#: Messages that are in the holding list at a time.
BATCH: Final = 100
#: No more messages are taken into a batch that has this many bytes.
BATCH_BYTES: Final = 8 * 1024 * 1024
#: kombu keeps priorities 1 to 9 in lists of their own.
_PRIORITIES: Final = range(10)
_SEPARATOR: Final = "\x06\x16"
#: Refused messages whose reason the report shows one by one.
SHOWN: Final = 20

# KEYS: list, holding list. ARGV: messages, bytes. Moves messages from the consumers' end; returns them.
_TAKE = """
local taken, bytes = {}, 0
for _ = 1, tonumber(ARGV[1]) do
  local message = redis.call('RPOPLPUSH', KEYS[1], KEYS[2])
  if not message then break end
  taken[#taken + 1] = message
  bytes = bytes + #message
  if bytes >= tonumber(ARGV[2]) then break end
end
return taken
"""
# KEYS: holding list, list of refused messages. ARGV: messages. Moves those that are still held; returns how many.
_REFUSE = """
local moved = 0
for _, message in ipairs(ARGV) do
  if redis.call('LREM', KEYS[1], -1, message) == 1 then
    redis.call('LPUSH', KEYS[2], message)
    moved = moved + 1
  end
end
return moved
"""
# KEYS: list of refused messages, list. ARGV: messages. Returns the newest to the consumers' end; returns how many.
_RESTORE = """
for moved = 0, tonumber(ARGV[1]) - 1 do
  local message = redis.call('LPOP', KEYS[1])
  if not message then return moved end
  redis.call('RPUSH', KEYS[2], message)
end
return tonumber(ARGV[1])
"""


@dataclass
class Report:
    """What became of the messages."""

    moved: int = 0
    expired: int = 0
    #: How many messages stay with Celery, by reason.
    left: Counter[str] = field(default_factory=Counter)
    #: The first of them: queue, id, task and reason.
    shown: list[tuple[str, str, str, str]] = field(default_factory=list)

    def leave(self, queue: str, data: bytes, reason: str) -> None:
        """Counts a message that stays with Celery."""
        self.left[reason] += 1
        if len(self.shown) < SHOWN:
            self.shown.append((queue, *names_in(data), reason))


class Expired(Exception):
    """The message has expired: a Celery worker would discard it."""


class Target:
    """The app that takes over: which call a message becomes."""

    def __init__(self, app: Holdfast, *, celery: bool) -> None:
        self.app = app
        #: Whether its types are those of `holdfast.contrib.celery`, and take the message's arguments as they are.
        self._celery = celery

    def prepare(self, queue: str, message: Message, now: datetime) -> Prepared[Any]:
        """The call; `CannotMove` if the app does not take it, `Expired` if its time has passed."""
        task_type = self.app.task_types.get(message.task)
        if task_type is None:
            raise CannotMove(f"the app has no task {message.task}")
        if not message.id:
            raise CannotMove("it has no id")
        if message.expires is not None and message.expires <= now:
            raise Expired
        try:
            using = self._using(task_type, queue, message, now)
            if self._celery:
                return using.prepare(message.args, message.kwargs)
            return using.prepare(*unmarked(message.args), **unmarked(message.kwargs))
        except (UsageError, TypeError, ValueError) as error:
            raise CannotMove(f"{message.task} does not take it: {error}") from error

    def _using(self, task_type: TaskType[..., Any], queue: str, message: Message, now: datetime) -> TaskType[..., Any]:
        headers = text_headers(message.headers) | {ID_HEADER: message.id}
        if message.retries:
            headers[RETRIES_HEADER] = str(message.retries)
        return task_type.using(
            queue=queue if self._celery else None,
            request_id=message.id,
            priority=-message.priority or None,
            run_at=message.eta,
            expires=None if message.expires is None else message.expires - now,
            timeout=message.soft_time_limit,
            hard_timeout=message.time_limit,
            headers=headers,
        )


class Drain:
    """Moves messages from the lists of one Redis into one app."""

    def __init__(self, broker: Any, target: Target, *, prefix: str = "") -> None:
        self._broker = broker
        self._target = target
        self._prefix = prefix
        self._take, self._refuse, self._restore = map(broker.register_script, (_TAKE, _REFUSE, _RESTORE))
        self.report = Report()

    def queue(self, queue: str) -> None:
        """Moves everything that this queue holds, until it is empty of what can be moved."""
        for name in self._lists(queue):
            holding, refused = self._holding(name)
            self._put_back(refused, name)
            while held := self._broker.lrange(holding, -BATCH, -1):  # of a run that was killed
                self._settle(queue, name, held[::-1])
            while taken := self._take(keys=[name, holding], args=[BATCH, BATCH_BYTES]):
                self._settle(queue, name, taken)
            self._put_back(refused, name)

    def look(self, queue: str) -> None:
        """Counts what `queue` would do, and changes nothing."""
        for name in self._lists(queue):
            for key in (*self._holding(name), name):
                for first in range(0, self._broker.llen(key), BATCH):
                    ready, expired, _ = self._sorted(queue, self._broker.lrange(key, first, first + BATCH - 1))
                    self.report.moved += len(ready)
                    self.report.expired += len(expired)

    def held(self, queues: Iterable[str]) -> int:
        """How many messages are in holding lists: more than 0 only while a drain runs, and after it was killed."""
        keys = [key for queue in queues for name in self._lists(queue) for key in self._holding(name)]
        return sum(self._broker.llen(key) for key in keys)

    def _settle(self, queue: str, name: str, messages: Sequence[bytes]) -> None:
        holding, refused = self._holding(name)
        ready, expired, left = self._sorted(queue, messages)
        done = [*expired, *self._enqueued(queue, ready, left)]
        if done:
            with self._broker.pipeline(transaction=False) as pipeline:
                for message in done:
                    pipeline.lrem(holding, -1, message)
                pipeline.execute()
        if left:
            self._refuse(keys=[holding, refused], args=left)
        self.report.moved += len(done) - len(expired)
        self.report.expired += len(expired)

    def _sorted(
        self, queue: str, messages: Iterable[bytes]
    ) -> tuple[list[tuple[bytes, Prepared[Any]]], list[bytes], list[bytes]]:
        """The messages that can be moved, those that have expired, and those that stay with Celery."""
        ready, expired, left = [], [], []
        now = datetime.now(UTC)
        for data in messages:
            try:
                ready.append((data, self._target.prepare(queue, read(data), now)))
            except Expired:
                expired.append(data)
            except CannotMove as reason:
                self.report.leave(queue, data, str(reason))
                left.append(data)
        return ready, expired, left

    def _enqueued(self, queue: str, ready: Sequence[tuple[bytes, Prepared[Any]]], left: list[bytes]) -> Iterator[bytes]:
        """Enqueues the calls and gives their messages; one whose id stands for another call is left."""
        enqueue_many: Callable[..., Any] = self._target.app.enqueue_many
        try:
            enqueue_many([call for _, call in ready])
        except RequestConflict:  # those of the batch without one are enqueued, and are known when sent again
            for data, call in ready:
                try:
                    enqueue_many([call])
                    yield data
                except RequestConflict as conflict:
                    self.report.leave(queue, data, f"its id stands for another task: {conflict}")
                    left.append(data)
            return
        yield from (data for data, _ in ready)

    def _put_back(self, refused: str, name: str) -> None:
        while self._restore(keys=[refused, name], args=[BATCH]):
            pass

    def _lists(self, queue: str) -> list[str]:
        return [f"{self._prefix}{queue}{f'{_SEPARATOR}{each}' if each else ''}" for each in _PRIORITIES]

    @staticmethod
    def _holding(name: str) -> tuple[str, str]:
        return f"holdfast-drain:held:{name}", f"holdfast-drain:refused:{name}"


def connect(url: str) -> Any:
    """A client of the Redis that Celery uses as its broker; `BadUrl` or `StoreUnavailable` in one line."""
    import redis

    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise BadUrl(f"{hidden(url)!r}: drain reads Redis only; give the redis:// URL of Celery's broker")
    try:
        client: Any = redis.Redis.from_url(url)
        client.ping()
    except (redis.RedisError, ValueError, OSError) as error:
        raise StoreUnavailable(f"cannot reach Celery's broker at {hidden(url)}: {error}") from None
    return client
