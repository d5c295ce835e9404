from typing import Any

from django.db import models, transaction


class Order(models.Model):  # type: ignore[misc]  # Django has no types
    number = models.IntegerField(unique=True)
    paid = models.BooleanField(default=False)
    mails = models.IntegerField(default=0)

    class Meta:
        app_label = "orders"

    def __str__(self) -> str:
        return str(self.number)


class TaskRow(models.Model):  # type: ignore[misc]  # Django has no types
    """One row per task, as paperless-ngx has it."""

    task_id = models.CharField(max_length=64, unique=True)
    name = models.CharField(max_length=200)
    status = models.CharField(max_length=20)
    result = models.TextField(default="")

    class Meta:
        app_label = "orders"

    def __str__(self) -> str:
        return f"{self.name} {self.status}"


def place_order(number: int) -> Any:
    """Creates an order and starts its tasks when that is committed."""
    from tests.contrib.celery_apps.shop.orders.tasks import pay

    with transaction.atomic():
        order = Order.objects.create(number=number)
        transaction.on_commit(lambda: pay.delay(order.pk))
    return order
