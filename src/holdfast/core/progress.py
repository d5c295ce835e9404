"""What a run says of itself while it goes on: how far it is, and its last log lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from holdfast.core.task import Task


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """One line of a task's log: `[1700000000000, "warning", "the disk is nearly full"]` in JSON."""

    at_ms: int  # by the clock of the worker
    level: str
    text: str


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON document that `Hold.progress` carries and `Task.progress` keeps; of one run, the latest wins."""

    done: int | float | None = None
    total: int | float | None = None
    note: str | None = None
    #: The latest lines of this run, the first one first.
    log: tuple[LogLine, ...] = ()


_decoder = msgspec.json.Decoder(Progress)


def read_progress(data: bytes | None) -> Progress:
    """The progress that a store has kept; an empty one if there is none, or if it was written by somebody else."""
    if data is None:
        return Progress()
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:  # a ValidationError too
        return Progress()


def kept_log(task: Task) -> tuple[LogLine, ...]:
    """The log lines that are kept of the runs of a task, the first one first."""
    failed = [line for attempt in task.history if attempt.error is not None for line in attempt.error.log]
    # A store may still show the progress of a run that has failed: what is older than the failure is among those above.
    since_ms = failed[-1].at_ms if failed else 0
    latest = read_progress(task.progress).log
    return (*failed, *(line for line in latest if line.at_ms >= since_ms and line not in failed))
