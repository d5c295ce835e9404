import os

from holdfast.contrib.celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.contrib.celery_apps.shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
