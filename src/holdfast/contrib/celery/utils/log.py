"""Loggers for tasks: their lines carry the task's id, and are kept with it."""

from __future__ import annotations

import logging


def get_task_logger(name: str) -> logging.Logger:
    """The logger of this name; `holdfast worker` adds the running task to what it writes."""
    return logging.getLogger(name)


get_logger = get_task_logger
