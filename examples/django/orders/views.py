from django.db import transaction
from django.http import JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from orders.models import Order
from orders.tasks import TaskResultDoesNotExist, confirm


@csrf_exempt  # called by programs, not by forms
@require_POST
def place(request):
    with transaction.atomic():
        order = Order.objects.create(article=request.POST.get("article", "a book")[:100])
        order.task_id = confirm.enqueue(order.pk).id
        order.save()
    return JsonResponse({"number": order.pk, "task_id": order.task_id}, status=202)


def show(_request, number):
    order = get_object_or_404(Order, pk=number)
    try:
        task = confirm.get_result(order.task_id).status
    except TaskResultDoesNotExist:  # a result is kept for a day
        task = None
    return JsonResponse({"article": order.article, "confirmed": order.confirmed_at is not None, "task": task})
