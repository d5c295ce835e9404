"""Every error that Holdfast raises on purpose.

HoldfastError
├── UsageError              the call is wrong: fix it, a retry fails the same way
│   ├── BadDuration         not a duration: 90, "10m", timedelta(...)
│   ├── BadName             a queue, task type or request_id with invalid characters
│   ├── BadOption           an option out of its range
│   ├── BadUrl              a store URL that cannot be opened
│   ├── BadArguments        arguments that do not match the task's signature or cannot be encoded as JSON
│   ├── BadResult           a result that cannot be encoded as JSON, or does not match the annotated type
│   ├── PayloadTooLarge     arguments or result over the size limit
│   ├── PayloadTooDeep      arguments or result nested over the depth limit
│   ├── UnknownTaskType     no such task type in this app
│   ├── UnknownTask         no such task_id in this store
│   ├── UnknownSchedule     no such schedule in this store
│   ├── UnknownWorker       no such worker in this store
│   ├── UnknownToken        no such token of the HTTP API
│   ├── NotAllowed          the token does not have the scope for this call
│   ├── NotGenuine          arguments or a result without the required signature or encryption
│   ├── UnknownKey          signed or encrypted with a key that this process does not have
│   ├── BadSchedule         an invalid cron expression, interval or time zone
│   ├── RequestConflict     the request_id or task_id already belongs to a different task
│   ├── BadApp              "module:app" that cannot be imported
│   └── Refused             the task's state does not allow this
├── StoreError              the store could not execute the call
│   ├── StoreUnavailable    the store did not answer: retry with the same ids
│   │   └── DurabilityUnknown  written, but not confirmed by enough replicas
│   ├── StoreFull           no room for new tasks; running tasks can still be settled
│   ├── StoreTooNew         created by a newer version of Holdfast
│   ├── StoreCorrupt        the data is damaged: stop and restore a backup
│   ├── StaleEpoch          another process is the leader now
│   └── StaleMap            routed with an old partition map: read the new one and retry
├── TaskFailed              result(): the task ended without a result
│   └── TaskCancelled       result(): it was cancelled
├── ResultTimeout           result(): not finished in time, and why; the task continues
└── ClaimLost               inside a task: another worker may have claimed it, stop side effects

TimedOut                    inside a task: its time limit has passed, clean up and end; not an `Exception`,
                            so that a loop with `except Exception` does not swallow it
"""

from __future__ import annotations

from typing import Any


class HoldfastError(Exception):
    """Base class of all errors of Holdfast."""

    #: Whether the same call, with the same ids, may succeed later.
    retryable: bool = False


class UsageError(HoldfastError):
    """The call is wrong."""


class BadDuration(UsageError):
    """Not a duration."""


class BadName(UsageError):
    """A name with invalid characters."""


class BadOption(UsageError):
    """An option out of its range."""


class BadUrl(UsageError):
    """A store URL that cannot be opened."""


class BadArguments(UsageError):
    """Arguments that do not match the signature of the task type."""


class BadResult(UsageError):
    """A result that cannot be encoded as JSON, or does not match the annotated type."""


class PayloadTooLarge(UsageError):
    """Arguments or result over the size limit."""


class PayloadTooDeep(UsageError):
    """Arguments or result nested over the depth limit."""


class UnknownTaskType(UsageError):
    """No such task type."""


class UnknownTask(UsageError):
    """No such task."""


class UnknownSchedule(UsageError):
    """No such schedule."""


class UnknownWorker(UsageError):
    """No such worker."""


class UnknownToken(UsageError):
    """No such token."""


class NotAllowed(UsageError):
    """The token does not have the scope for this call."""


class NotGenuine(UsageError):
    """Not signed or encrypted as required."""


class UnknownKey(UsageError):
    """Signed or encrypted with a key that this process does not have."""

    retryable = True


class BadSchedule(UsageError):
    """An invalid cron expression, interval or time zone."""


class RequestConflict(UsageError):
    """The id already belongs to a different task."""


class BadApp(UsageError):
    """An app reference that cannot be imported."""


class Refused(UsageError):
    """The state of the task does not allow this."""


class StoreError(HoldfastError):
    """The store could not execute the call."""


class StoreUnavailable(StoreError):
    """The store did not answer; retry with the same ids."""

    retryable = True

    def __init__(self, message: str = "", *, tried_ms: int = 0) -> None:
        super().__init__(message)
        #: How long the store has retried the call, in milliseconds; 0 if it was tried once.
        self.tried_ms = tried_ms


class DurabilityUnknown(StoreUnavailable):
    """Written, but confirmed by fewer replicas than the durability level requires; retry with the same ids."""


class StoreFull(StoreError):
    """No room for new tasks; running tasks can still be settled."""

    retryable = True


class StoreTooNew(StoreError):
    """The store was created by a newer version."""


class StoreCorrupt(StoreError):
    """The store's data is damaged."""


class StaleEpoch(StoreError):
    """Another process is the leader now."""


class StaleMap(StoreError):
    """The partition map has a newer version; nothing was changed."""

    retryable = True


class TaskFailed(HoldfastError):
    """The task ended without a result."""

    def __init__(
        self, text: str = "", *, error: str = "", message: str = "", traceback: str = "", task: Any = None
    ) -> None:
        super().__init__(text)
        #: The class of the last error, such as `builtins.ValueError`; empty if no attempt raised one.
        self.error = error
        #: What the last error said.
        self.message = message
        #: The traceback of the last error, as text.
        self.traceback = traceback
        #: The task as it was when it had ended: a `TaskInfo`.
        self.task = task


class TaskCancelled(TaskFailed):
    """The task was cancelled."""


class ResultTimeout(HoldfastError):
    """The task did not finish within the given time; it continues."""

    retryable = True

    def __init__(self, message: str = "", *, task_id: str = "", state: str = "", why: str = "") -> None:
        super().__init__(message)
        self.task_id = task_id
        #: The state of the task when the time was over; empty if the store did not answer.
        self.state = state
        #: Why it was in that state, in words; empty if the store did not answer.
        self.why = why


class ClaimLost(HoldfastError):
    """The attempt lost its claim; another worker may have the task."""


class TimedOut(BaseException):
    """The time limit of this attempt has passed."""
