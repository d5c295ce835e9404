"""Log lines of workers and servers: text for people, JSON for machines, with the task and the trace they belong to.

Text that looks like a secret is left out here, and nowhere else, from the lines and tracebacks of every logger.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, TextIO

import msgspec

from holdfast.errors import BadOption
from holdfast.observe.tracing import request_task_id, trace_id
from holdfast.runtime.interrupts import shielded
from holdfast.security.redaction import redacted_text

_log = logging.getLogger("holdfast.observe")
_plain = logging.Formatter()

LogFormat = Literal["text", "json"]
#: Adds to a record what is known where it was made.
Describe = Callable[[logging.LogRecord], bool]

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_FIELDS = ("task_id", "task_type", "queue", "attempt", "outcome", "duration_ms", "trace_id")


def of_request(record: logging.LogRecord) -> bool:
    """A record made while a request is answered says which task and which trace that is about."""
    if not hasattr(record, "task_id") and (task_id := request_task_id()) is not None:
        record.task_id = task_id
    if not hasattr(record, "trace_id") and (found := trace_id()) is not None:
        record.trace_id = found
    return True


def set_up_logging(level: str, log_format: LogFormat, describe: Describe = of_request) -> logging.Logger:
    """Sends all log records of this process to stderr, and what its threads end by; gives the root logger."""
    if level.lower() not in _LEVELS:
        raise BadOption(f"log-level: {level!r} must be one of {', '.join(_LEVELS)}")
    handler = _ToStderr(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    handler.addFilter(describe)
    root = logging.getLogger()
    root.setLevel(_LEVELS[level.lower()])
    root.addHandler(handler)
    threading.excepthook = _log_end_of_thread
    return root


def message_of(record: logging.LogRecord) -> str:
    """What it says; of one that cannot be formatted, that and where it was made, since its arguments may be secret."""
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001  (of whatever the arguments are)
        return f"{record.msg!r} cannot be formatted: {error} ({record.pathname}:{record.lineno})"


def traceback_of(record: logging.LogRecord) -> str:
    """The traceback and the stack that belong to it; empty without any."""
    raised = record.exc_text or (_plain.formatException(record.exc_info) if record.exc_info else "")
    return "\n".join(part for part in (raised, record.stack_info) if part)


def _log_end_of_thread(end: threading.ExceptHookArgs) -> None:
    if end.exc_type is not SystemExit:
        name = None if end.thread is None else end.thread.name
        error = end.exc_value or end.exc_type()
        _log.error("thread %s has ended with an error", name, exc_info=(end.exc_type, error, end.exc_traceback))


def is_told(record: logging.LogRecord) -> bool:
    """Marks a record as one that a line of `holdfast.task` tells too: other handlers get it, stderr does not."""
    record.holdfast_told = True
    return True


class _ToStderr(logging.StreamHandler[TextIO]):
    def handle(self, record: logging.LogRecord) -> bool:
        """Writes it; a task that is interrupted meanwhile must not be left holding the handler's lock."""
        if getattr(record, "holdfast_told", False):
            return False
        with shielded():
            return bool(super().handle(record))


class TextLines(logging.Formatter):
    """Lines for people."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, with the task behind the message where there is one, and the traceback below it.

        A line about the run of a task names that itself; for a retry it is one line, since the next attempt may help.
        """
        message = redacted_text(message_of(record))
        said = f"{self.formatTime(record)} {record.levelname:<7} {record.name}: {message}"
        task_id = getattr(record, "task_id", None)
        outcome = getattr(record, "outcome", None)
        is_named = outcome or task_id is None or str(task_id) in message
        line = said if is_named else f"{said} [{getattr(record, 'task_type', 'task')} {task_id}]"
        traceback = "" if outcome == "retried" else traceback_of(record)
        return f"{line}\n{redacted_text(traceback)}" if traceback else line


class JsonLines(logging.Formatter):
    """Lines for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted_text(message_of(record)),
            "process": record.process,
        }
        line |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if traceback := traceback_of(record):
            line["traceback"] = redacted_text(traceback)
        return msgspec.json.encode(line).decode()
