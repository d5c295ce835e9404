"""Log lines of supervisor and children: text for people, JSON for machines."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

from holdfast.errors import BadOption
from holdfast.worker.context import current_run
from holdfast.worker.options import LogFormat

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_TASK_FIELDS = ("task_id", "task_type", "queue", "attempt")


def set_up_logging(level: str, log_format: LogFormat) -> None:
    """Sends all log records of this process to stderr."""
    if level.lower() not in _LEVELS:
        raise BadOption(f"log-level: {level!r} must be one of {', '.join(_LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if log_format == "json" else _TextLines())
    handler.addFilter(_add_task)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(_LEVELS[level.lower()])


def _add_task(record: logging.LogRecord) -> bool:
    """A record made inside a task says which, whatever logger made it."""
    run = current_run.get(None)
    if run is not None and not hasattr(record, "task_id"):
        task = run.task
        record.task_id, record.task_type = task.task_id, task.type
        record.queue, record.attempt = task.queue, task.attempt
    return True


class _TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line, with the task in front of the message where there is one."""
        line = super().format(record)
        task_id = getattr(record, "task_id", None)
        return f"{line} [{getattr(record, 'task_type', '?')} {task_id}]" if task_id else line


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One JSON object."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        line |= {name: getattr(record, name) for name in _TASK_FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
