"""Log lines of supervisor and children: those of tasks say which, and are kept with them."""

from __future__ import annotations

import logging

from holdfast.observe.logs import LogFormat, message_of, traceback_of
from holdfast.observe.logs import set_up_logging as set_up_lines
from holdfast.observe.tracing import trace_id
from holdfast.worker.context import TASK_LOGGER, current_run
from holdfast.worker.report import report_of


def set_up_logging(level: str, log_format: LogFormat) -> None:
    """Sends all log records of this process to stderr, and keeps those of tasks with them."""
    root = set_up_lines(level, log_format, _add_task)
    root.addHandler(LogKeeper(root.level))


class LogKeeper(logging.Handler):
    """Keeps the log records that are made inside a task with its run."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Adds it to what the run has to say; without the handler's lock, which an interrupted thread could keep."""
        run = current_run.get(None)
        if run is not None:
            report_of(run).add(round(record.created * 1000), record.levelname.lower(), self._text(record))
        return True

    def _text(self, record: logging.LogRecord) -> str:
        origin = "" if record.name == TASK_LOGGER else f"{record.name}: "
        text, traceback = f"{origin}{message_of(record)}", traceback_of(record)
        return f"{text}\n{traceback}" if traceback else text


def _add_task(record: logging.LogRecord) -> bool:
    """A record made inside a task says which, whatever logger made it, and in which trace that runs."""
    run = current_run.get(None)
    if run is None:
        return True
    task = run.task
    if not hasattr(record, "task_id"):
        record.task_id, record.task_type = task.task_id, task.type
        record.queue, record.attempt = task.queue, task.attempt
    if not hasattr(record, "trace_id") and (found := trace_id(task.headers)) is not None:
        record.trace_id = found
    return True
