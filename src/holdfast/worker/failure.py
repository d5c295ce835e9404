"""Errors as bounded text that can be stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from traceback import StackSummary, TracebackException

from holdfast.core.durations import format_ms
from holdfast.core.progress import LogLine
from holdfast.core.retry import error_name
from holdfast.core.task import Failure
from holdfast.errors import TimedOut
from holdfast.worker.report import storable

MAX_MESSAGE_CHARS = 4 * 1024
MAX_TRACEBACK_CHARS = 16 * 1024

_HERE = str(Path(__file__).parent)


def describe(error: BaseException, log: Sequence[LogLine] = ()) -> Failure:
    """The error without the frames of the worker and without local variables, and the log that goes with it."""
    try:
        message = str(error)
    except Exception as broken:  # noqa: BLE001  (an exception's own __str__ may fail)
        message = f"<str() failed: {type(broken).__name__}>"
    text = storable(message[:MAX_MESSAGE_CHARS])
    return Failure(error_name(type(error)), text, storable(_traceback(error)), tuple(log))


def describe_timeout(error: BaseException, timeout_ms: int, log: Sequence[LogLine] = ()) -> Failure:
    """The end of a run by its time limit; the traceback tells where it was then."""
    message = f"ran longer than its time limit of {format_ms(timeout_ms)}"
    return Failure(error_name(TimedOut), message, storable(_traceback(error)), tuple(log))


def _traceback(error: BaseException) -> str:
    told = TracebackException.from_exception(error)
    _leave_out_the_worker(told)
    text = "".join(told.format())
    if len(text) <= MAX_TRACEBACK_CHARS:
        return text
    return "…\n" + text[-MAX_TRACEBACK_CHARS + 2 :]  # the end tells most


def _leave_out_the_worker(told: TracebackException) -> None:
    told.stack = StackSummary.from_list([frame for frame in told.stack if not frame.filename.startswith(_HERE)])
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if other is not None:
            _leave_out_the_worker(other)
