"""Every error that Holdfast raises on purpose.

HoldfastError
├── UsageError              the call is wrong: mend it, a repeat fails the same way
│   ├── BadDuration         not a duration: 90, "10m", timedelta(...)
│   ├── BadName             a queue, task type or request_id with characters we refuse
│   ├── BadOption           an option out of its range
│   ├── BadUrl              a store URL that nothing here can open
│   ├── BadArguments        arguments that do not fit the task's signature or cannot be JSON
│   ├── PayloadTooLarge     arguments or result over the size limit
│   ├── PayloadTooDeep      arguments or result nested over the depth limit
│   ├── UnknownTaskType     no such task type in this app
│   ├── UnknownTask         no such task_id in this store
│   ├── UnknownSchedule     no such schedule in this store
│   ├── UnknownWorker       no such worker on the list of this store
│   ├── UnknownToken        no such token of the HTTP API
│   ├── NotAllowed          the token that a gateway was called with may not do this
│   ├── NotGenuine          arguments or a result without the signature or the encryption that is asked for
│   ├── UnknownKey          signed or encrypted with a key that this process does not have
│   ├── BadSchedule         a cron line, an interval or a time zone that cannot be
│   ├── RequestConflict     the request_id or task_id already stands for something else
│   ├── BadApp              "module:app" that cannot be imported
│   └── Refused             the task's state does not allow this
├── StoreError              the store could not do it
│   ├── StoreUnavailable    try again with the same ids
│   │   └── DurabilityUnknown  recorded, but too few replicas have confirmed it
│   ├── StoreFull           no room for new tasks; settlements still pass
│   ├── StoreTooNew         made by a newer version of Holdfast
│   ├── StoreCorrupt        the data is damaged: stop and restore
│   ├── StaleEpoch          another process owns this duty now
│   └── StaleMap            routed by an old partition map: fetch the new one and repeat
├── TaskFailed              result(): the task ended without a result
│   └── TaskCancelled       result(): it was cancelled
├── ResultTimeout           result(): not finished in time; the task goes on
└── ClaimLost               inside a task: another worker may hold it now, stop side effects

TimedOut                    inside a task: its time limit has passed, clean up and end; not an `Exception`,
                            so that a loop with `except Exception` does not swallow it
"""

from __future__ import annotations


class HoldfastError(Exception):
    """The base of them all."""

    #: Whether the same call, with the same ids, may succeed later.
    retryable: bool = False


class UsageError(HoldfastError):
    """The call is wrong."""


class BadDuration(UsageError):
    """Not a duration."""


class BadName(UsageError):
    """A name with characters that are refused."""


class BadOption(UsageError):
    """An option out of its range."""


class BadUrl(UsageError):
    """A store URL that cannot be opened."""


class BadArguments(UsageError):
    """Arguments that do not fit the task type."""


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
    """The token may not do this."""


class NotGenuine(UsageError):
    """Not signed or encrypted as asked for."""


class UnknownKey(UsageError):
    """Signed or encrypted with a key that this process does not have."""

    retryable = True


class BadSchedule(UsageError):
    """A cron line, an interval or a time zone that cannot be."""


class RequestConflict(UsageError):
    """The id already stands for a different task."""


class BadApp(UsageError):
    """An app reference that cannot be imported."""


class Refused(UsageError):
    """The state of the task does not allow this."""


class StoreError(HoldfastError):
    """The store could not do it."""


class StoreUnavailable(StoreError):
    """The store did not answer; repeat with the same ids."""

    retryable = True


class DurabilityUnknown(StoreUnavailable):
    """Recorded, but fewer replicas than the durability level asks for have confirmed it; repeat with the same ids."""


class StoreFull(StoreError):
    """No room for new tasks; what is running can still be settled."""

    retryable = True


class StoreTooNew(StoreError):
    """The store was made by a newer version."""


class StoreCorrupt(StoreError):
    """The store's data is damaged."""


class StaleEpoch(StoreError):
    """Another process holds this duty now."""


class StaleMap(StoreError):
    """The partition map has a newer version; nothing was done."""

    retryable = True


class TaskFailed(HoldfastError):
    """The task ended without a result."""


class TaskCancelled(TaskFailed):
    """The task was cancelled."""


class ResultTimeout(HoldfastError):
    """The task has not finished in the time given; it goes on."""

    retryable = True


class ClaimLost(HoldfastError):
    """The claim of this attempt has passed; another worker may hold the task now."""


class TimedOut(BaseException):
    """The time limit of this attempt has passed."""
