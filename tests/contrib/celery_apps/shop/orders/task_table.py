from typing import Any

from holdfast.contrib.celery.signals import before_task_publish, task_failure, task_postrun, task_prerun
from tests.contrib.celery_apps.shop.orders.models import TaskRow


@before_task_publish.connect
def add_row(sender: str, headers: dict[str, Any], body: Any, **_: Any) -> None:
    TaskRow.objects.create(task_id=headers["id"], name=headers["task"], status="PENDING")
    headers["tenant"] = "berlin"


@task_prerun.connect
def started(task_id: str, **_: Any) -> None:
    TaskRow.objects.filter(task_id=task_id).update(status="STARTED")


@task_postrun.connect
def ended(task_id: str, state: str, retval: Any, **_: Any) -> None:
    TaskRow.objects.filter(task_id=task_id).update(status=state, result=str(retval))


@task_failure.connect
def failed(task_id: str, exception: Exception, **_: Any) -> None:
    TaskRow.objects.filter(task_id=task_id).update(status="FAILURE", result=str(exception))
