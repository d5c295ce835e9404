"""Sends messages with the real Celery: `python -m tests.contrib.celery_apps.producer BROKER_URL KIND COUNT`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from celery import Celery, chain, group

ETA = datetime(2031, 1, 31, 9, tzinfo=UTC)
ORDER = UUID("a25c7160-8d44-4320-a0a2-c6e81d313e0e")


def plain(app: Any, count: int) -> None:
    """Calls by position and by name, in turn."""
    with app.producer_or_acquire() as producer:
        for number in range(count):
            call: dict[str, Any] = {"args": (number,)} if number % 2 else {"kwargs": {"number": number}}
            app.send_task("shop.mail", producer=producer, task_id=f"id-{number}", **call)


def options(app: Any, _: int) -> None:
    """One message for each option that a drain keeps, and for each reason to leave one."""
    send = app.send_task
    send("shop.mail", (1,), task_id="eta", eta=ETA)
    send("shop.mail", (2,), task_id="priority", priority=4)
    send("shop.mail", (3,), task_id="limits", soft_time_limit=3, time_limit=9)
    send("shop.mail", (4,), task_id="headers", headers={"tenant": "a", "shard": 3})
    send("shop.mail", (5,), task_id="expired", expires=datetime.now(UTC) - timedelta(hours=1))
    send("shop.mail", (6,), task_id="expires", expires=3600)
    send("shop.mail", (7,), task_id="mail-queue", queue="mail")
    send("shop.price", (ORDER, Decimal("1.50"), ETA), task_id="types")
    send("shop.mail", (8,), task_id="retried", retries=2)
    send("shop.unknown", (9,), task_id="unknown")
    send("shop.mail", (10,), task_id="pickled", serializer="pickle")
    send("shop.mail", (11,), task_id="linked", link=app.signature("shop.mail", (12,)))
    chain(app.signature("shop.mail", (13,)), app.signature("shop.mail", (14,))).apply_async()
    group(app.signature("shop.mail", (15,)), app.signature("shop.mail", (16,))).apply_async()


if __name__ == "__main__":
    broker, kind, many = sys.argv[1:]
    celery = Celery("producer", broker=broker)
    celery.conf.broker_transport_options = {"global_keyprefix": ""}
    {"plain": plain, "options": options}[kind](celery, int(many))
