"""Tasks of every kind, and a function that is none."""

from __future__ import annotations

from datetime import date
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection
from django.http import HttpRequest

from holdfast import Again, Retry, Snooze, current
from holdfast.contrib.django import cron, every, policy

try:
    from django.tasks import task
except ModuleNotFoundError:
    from django_tasks import task


@task
def add(left: int, right: int = 1) -> int:
    return left + right


@task
@policy(retry=Retry(max_attempts=7, base="3s"), timeout="20s", expires="1h")
def charge(order: int) -> int:
    return order


@policy(timeout="30s")
@task(takes_context=True)
def render(context: Any, page: int, *, scale: float = 1.0) -> float:
    return page * scale


@task
@policy(retry=Retry(max_attempts=1))
def divide(number: int, by: int = 2) -> int:
    return number // by


@every("1h")
@cron("0 3 1 * *", timezone="Europe/Berlin", name="monthly", args={"days": 90})
@task(queue_name="mail", priority=3)
def prune(days: int = 30) -> int:
    return days


@task
def anything(value: Any) -> None: ...


@task
def remind(day: date, ids: set[int], request: HttpRequest) -> None:
    """Has annotations for what JSON does not have, one of them without a form in it."""


@task
def several(first: int, *others: int, key: int, **more: int) -> int:
    return first + sum(others) + key + sum(more.values())


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


@task
def busy() -> str:
    if current().attempt == 1:
        raise Again("10ms") from KeyError("a retry would not help, said the policy")
    return "done"


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


@task
def count_types(label: str) -> dict[str, Any]:
    """What this task sees of the database, by the app label of content types."""
    from django.contrib.contenttypes.models import ContentType

    return {"rows": ContentType.objects.filter(app_label=label).count(), "id": current().task_id}


@task
async def acount_types(label: str) -> dict[str, Any]:
    from django.contrib.contenttypes.models import ContentType

    return {"rows": await ContentType.objects.filter(app_label=label).acount(), "id": current().task_id}


@task
def count_by_another(label: str) -> int:
    result = count_types.enqueue(label)
    return int(result.return_value["rows"])
