"""Log lines of workers and servers: text for people, JSON for machines, with the task and the trace they belong to."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, TextIO

import msgspec

from holdfast.errors import BadOption
from holdfast.observe.tracing import request_task_id, trace_id
from holdfast.shield import shielded

LogFormat = Literal["text", "json"]
#: Adds to a record what is known where it was made.
Describe = Callable[[logging.LogRecord], bool]

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_FIELDS = ("task_id", "task_type", "queue", "attempt", "trace_id")


def of_request(record: logging.LogRecord) -> bool:
    """A record made while a request is answered says which task and which trace that is about."""
    if not hasattr(record, "task_id") and (task_id := request_task_id()) is not None:
        record.task_id = task_id
    if not hasattr(record, "trace_id") and (found := trace_id()) is not None:
        record.trace_id = found
    return True


def set_up_logging(level: str, log_format: LogFormat, describe: Describe = of_request) -> logging.Logger:
    """Sends all log records of this process to stderr; gives the root logger."""
    if level.lower() not in _LEVELS:
        raise BadOption(f"log-level: {level!r} must be one of {', '.join(_LEVELS)}")
    handler = _ToStderr(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    handler.addFilter(describe)
    root = logging.getLogger()
    root.setLevel(_LEVELS[level.lower()])
    root.addHandler(handler)
    return root


class _ToStderr(logging.StreamHandler[TextIO]):
    def handle(self, record: logging.LogRecord) -> bool:
        """Writes it; a task that is interrupted meanwhile must not be left holding the handler's lock."""
        with shielded():
            return bool(super().handle(record))


class TextLines(logging.Formatter):
    """Lines for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line, with the task behind the message where there is one."""
        line = super().format(record)
        task_id = getattr(record, "task_id", None)
        return f"{line} [{getattr(record, 'task_type', 'task')} {task_id}]" if task_id else line


class JsonLines(logging.Formatter):
    """Lines for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        line |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
