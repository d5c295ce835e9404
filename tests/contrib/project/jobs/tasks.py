"""Tasks of every kind, and a function that is none."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection

from holdfast import Snooze, current

try:
    from django.tasks import task
except ModuleNotFoundError:
    from django_tasks import task


@task
def add(left: int, right: int = 1) -> int:
    return left + right


@task(queue_name="mail", priority=7)
async def greet(name: str) -> str:
    return f"hello {name}"


@task(takes_context=True)
def fail_once(context: Any, text: str) -> dict[str, Any]:
    if context.attempt == 1:
        raise ValueError(text)
    return {"attempt": context.attempt, "workers": context.task_result.worker_ids, "id": context.task_result.id}


@task
def fail_always() -> None:
    raise ValueError("always")


@task
def give_up() -> None:
    raise KeyError("a retry would not help")


@task
def unfit() -> object:
    return object()


@task
def sleepy() -> Any:
    return Snooze("10ms") if current().fencing_token == 1 else "awake"


def connected() -> bool:
    """Whether there was a database connection before this call, which makes one."""
    before = connection.connection is not None
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return before


@task
def connect() -> bool:
    return connected()


@task
async def connect_async() -> bool:
    return bool(await sync_to_async(connected)())


def größe() -> None: ...  # noqa: PLC2401  (that is what it is for)


def plain_function() -> str:
    return "must never run"
