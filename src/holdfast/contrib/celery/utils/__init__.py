"""Celery's helpers that applications import."""

from __future__ import annotations

from uuid import uuid4


def uuid() -> str:
    """A random id, for the `task_id` of a call."""
    return str(uuid4())
