"""What the shop does later. A worker finds this file by its name."""

from django.utils import timezone

from orders.models import Order

try:
    from django.tasks import task
except ModuleNotFoundError:  # before Django 6
    from django_tasks import task


@task(queue_name="mail", takes_context=True)
def confirm(context, number):
    """May run twice, as every task: an order that is confirmed stays as it is."""
    changed = Order.objects.filter(pk=number, confirmed_at=None).update(confirmed_at=timezone.now())
    return {"changed": changed, "attempt": context.attempt}
