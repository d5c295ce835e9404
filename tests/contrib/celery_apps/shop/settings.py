import os
from pathlib import Path

from holdfast.contrib.celery.schedules import crontab

FOLDER = Path(os.environ["CASE_FOLDER"])
SECRET_KEY = "not one"
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_celery_beat", "tests.contrib.celery_apps.shop.orders"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / "shop.db",
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    }
}
LOGGING_CONFIG = None
MIGRATION_MODULES = {"django_celery_beat": None}  # tables at once: faster than twenty migrations

CELERY_BROKER_URL = "redis://localhost:6379/0"
CELERY_RESULT_BACKEND = "redis://localhost:6379/1"
CELERY_HOLDFAST_URL = os.environ.get("CASE_STORE")  # the one new setting
CELERY_TASK_ALWAYS_EAGER = bool(os.environ.get("CASE_EAGER"))
CELERY_TASK_EAGER_PROPAGATES = True
CELERY_TIMEZONE = "Europe/Berlin"
CELERY_TASK_TRACK_STARTED = True
CELERY_TASK_TIME_LIMIT = 60
CELERY_TASK_ROUTES = {"tests.contrib.celery_apps.shop.orders.tasks.send_*": {"queue": "mail"}}
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
CELERY_BEAT_SCHEDULE = {
    "clean up": {
        "task": "tests.contrib.celery_apps.shop.orders.tasks.clean_up",
        "schedule": crontab(minute=0, hour=3),
        "kwargs": {"days": 30},
        "options": {"expires": 600},
    },
}
