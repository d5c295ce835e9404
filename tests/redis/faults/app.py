"""An app with large tasks, of which nothing is kept for long."""

from __future__ import annotations

from holdfast import Holdfast
from holdfast.producer.task_type import TaskType


def size(text: str) -> int:
    return len(text)


def make_app(url: str | None = None) -> tuple[Holdfast, TaskType[[str], int]]:
    """The app on this store, and its task type."""
    # Redis keeps what has ended in memory too: with a day of retention, a full server would be full for a day.
    made = Holdfast(url, lease="2s", result_ttl="1s")
    return made, made.task(name="size")(size)


app, _ = make_app()
