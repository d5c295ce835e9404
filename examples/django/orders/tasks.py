"""What the shop does later. A worker finds this file by its name."""

from django.utils import timezone

from orders.models import Order

try:
    from django.tasks import task
    from django.tasks.exceptions import TaskResultDoesNotExist
except ModuleNotFoundError:  # before Django 6
    from django_tasks import task
    from django_tasks.exceptions import TaskResultDoesNotExist

__all__ = ["TaskResultDoesNotExist", "confirm"]


@task(queue_name="mail", takes_context=True)
def confirm(context, number):
    """May run twice, as every task: an order that is confirmed stays as it is."""
    changed = Order.objects.filter(pk=number, confirmed_at=None).update(confirmed_at=timezone.now())
    return {"changed": changed, "attempt": context.attempt}
