"""The options of a call: never mixed with its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.durations import Duration, duration_ms, format_ms
from holdfast.core.names import check_queue, check_request_id, is_storable
from holdfast.core.priority import check_priority
from holdfast.core.retry import DEFAULT_POLICY, Retry, RunPolicy
from holdfast.core.task import MAX_HEADER_BYTES, MAX_HEADERS, NewTask, with_trace
from holdfast.errors import BadOption

if TYPE_CHECKING:
    from holdfast.security.crypto import PayloadCrypto
    from holdfast.stores.capabilities import Transaction

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How and when a task runs, in the form that is recorded with it."""

    queue: str = "default"
    priority: int = 0
    policy: RunPolicy = DEFAULT_POLICY
    delay_ms: int = 0
    run_at_ms: int | None = None
    request_id: str | None = None
    headers: dict[str, str] = {}
    #: Not recorded: what it is recorded in.
    transaction: Transaction | None = None
    #: Not recorded: how the app signs and encrypts.
    crypto: PayloadCrypto | None = None

    def new_task(
        self, task_id: str, type_name: str, payload: bytes, carried: Mapping[str, str] | None = None
    ) -> NewTask:
        """The envelope of a call with these options; a trace that is carried along gives way to one of its own."""
        task = NewTask(
            task_id=task_id,
            type=type_name,
            queue=self.queue,
            payload=payload,
            headers=with_trace(self.headers, carried),
            request_id=self.request_id,
            priority=self.priority,
            policy=self.policy,
            delay_ms=self.delay_ms,
            run_at_ms=self.run_at_ms,
        )
        return task if self.crypto is None else self.crypto.task(task)


def changed(  # noqa: PLR0913  (the options that a call may have)
    options: Options,
    *,
    queue: str | None = None,
    delay: Duration | None = None,
    run_at: datetime | None = None,
    priority: int | None = None,
    request_id: str | None = None,
    retry: Retry | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: Duration | None = None,
    hard_timeout: Duration | None = None,
    expires: Duration | None = None,
) -> Options:
    """The options with those replaced that are given; each is checked."""
    if delay is not None and run_at is not None:
        raise BadOption("delay and run_at exclude each other: give one of them")
    changes: dict[str, Any] = {}
    if queue is not None:
        changes["queue"] = check_queue(queue)
    if delay is not None:
        changes.update(delay_ms=duration_ms(delay, "delay"), run_at_ms=None)
    if run_at is not None:
        changes.update(delay_ms=0, run_at_ms=epoch_ms(run_at, "run_at"))
    if priority is not None:
        changes["priority"] = check_priority(priority)
    if request_id is not None:
        changes["request_id"] = check_request_id(request_id)
    policy = options.policy if retry is None else _policy(retry, options.policy)
    changes["policy"] = limited(policy, timeout=timeout, hard_timeout=hard_timeout, expires=expires)
    if headers is not None:
        changes["headers"] = _checked_headers(headers)
    new = msgspec.structs.replace(options, **changes)
    if new.policy.expires_ms is not None and new.delay_ms >= new.policy.expires_ms:
        raise BadOption(
            f"expires: {format_ms(new.policy.expires_ms)} is not longer than the delay of {format_ms(new.delay_ms)}: "
            "it counts from the enqueue, so the task could never start"
        )
    return new


#: A run that ignores its soft timeout has this long until its process is killed, unless a hard timeout is set.
HARD_AFTER_SOFT_MS = 30_000


def limited(
    policy: RunPolicy,
    *,
    timeout: Duration | None = None,
    hard_timeout: Duration | None = None,
    expires: Duration | None = None,
) -> RunPolicy:
    """The policy with those limits replaced that are given; each is checked."""
    changes: dict[str, int] = {}
    if timeout is not None:
        changes["timeout_ms"] = _limit_ms(timeout, "timeout")
        changes["hard_timeout_ms"] = changes["timeout_ms"] + HARD_AFTER_SOFT_MS
    if hard_timeout is not None:
        changes["hard_timeout_ms"] = _limit_ms(hard_timeout, "hard_timeout")
    if expires is not None:
        changes["expires_ms"] = _limit_ms(expires, "expires")
    new = msgspec.structs.replace(policy, **changes) if changes else policy
    if (new.timeout_ms or 0) > (new.hard_timeout_ms or new.timeout_ms or 0):
        raise BadOption(
            f"hard_timeout: {hard_timeout!r} is shorter than the timeout of {format_ms(new.timeout_ms or 0)}: "
            "the run would be killed before it is asked to end"
        )
    return new


def _limit_ms(limit: Duration, option: str) -> int:
    limit_ms = duration_ms(limit, option)
    if limit_ms == 0:
        raise BadOption(f'{option}: {limit!r} leaves no time at all; write "30s" or "5m", or leave it out')
    return limit_ms


def joined(options: Options, transaction: Transaction | None) -> Options:
    """The options for calls that are recorded in this transaction, if there is one."""
    return options if transaction is None else msgspec.structs.replace(options, transaction=transaction)


def epoch_ms(time: datetime, option: str) -> int:
    """The time in milliseconds since 1970; `option` names it in the error."""
    if not isinstance(time, datetime):
        raise BadOption(f"{option}: {time!r} is not a datetime; write datetime(2030, 1, 1, tzinfo=UTC)")
    if time.utcoffset() is None:
        raise BadOption(f"{option}: {time.isoformat()} has no time zone; add one, such as tzinfo=UTC")
    return max(0, (time - _EPOCH) // timedelta(milliseconds=1))


def _policy(retry: Retry, before: RunPolicy) -> RunPolicy:
    if not isinstance(retry, Retry):
        raise BadOption(f"retry: {retry!r} is not a Retry; write retry=Retry(max_attempts=3)")
    return retry.policy(before)


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise BadOption(f"headers: {headers!r} is not a mapping of text to text")
    for key, value in headers.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise BadOption(f"headers: {key!r}: {value!r} is not text to text")
        if not (is_storable(key, len(key)) and is_storable(value, len(value))):
            raise BadOption(
                f"headers: {key[:80]!r}: NUL and halves of surrogate pairs cannot be stored; leave them out"
            )
    if len(headers) > MAX_HEADERS:
        raise BadOption(f"headers: {len(headers):,} of them, the limit is {MAX_HEADERS}; put data into the arguments")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in headers.items())
    if size > MAX_HEADER_BYTES:
        raise BadOption(f"headers: {size:,} bytes, the limit is {MAX_HEADER_BYTES:,}; put data into the arguments")
    return dict(headers)
