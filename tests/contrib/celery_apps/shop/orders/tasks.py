import os
import signal
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import F

from holdfast.contrib.celery import Task, shared_task
from holdfast.contrib.celery.utils.log import get_task_logger
from tests.contrib.celery_apps.shop.orders.models import Order

logger = get_task_logger(__name__)


class Unreachable(Exception):
    pass


class Counted(Task):
    """A base class that notes how its tasks end."""

    def on_failure(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note(f"on_failure {self.name.rpartition('.')[2]} {exc}")


def note(text: str) -> None:
    with Path(settings.FOLDER, "notes.txt").open("a") as file:
        file.write(f"{text}\n")


@shared_task
def pay(order_id: int) -> int:
    Order.objects.filter(pk=order_id).update(paid=True)
    send_mail.apply_async((order_id,), countdown=0.1)
    return order_id


@shared_task(autoretry_for=(Unreachable,), retry_backoff=True, retry_jitter=False, max_retries=5, bind=True)
def send_mail(self: Any, order_id: int) -> str:
    """The first try of each fails."""
    if self.request.retries == 0:
        raise Unreachable("the mail server is away")
    Order.objects.filter(pk=order_id).update(mails=F("mails") + 1)
    logger.info("mail sent")
    return f"{(self.request.headers or {}).get('tenant')} {self.request.delivery_info['routing_key']}"


@shared_task(base=Counted)
def broken(number: int) -> None:
    note(f"broken {number}")
    raise ValueError(f"number {number}")


@shared_task
def lost(number: int) -> int:
    """Kills its process the first time."""
    place = Path(settings.FOLDER, f"lost-{number}")
    if not place.exists():
        place.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@shared_task
def clean_up(days: int) -> int:
    return days
