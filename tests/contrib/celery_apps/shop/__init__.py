"""A Django project that was written for Celery: shared tasks, on_commit, a table of tasks, schedules in the database.

What differs from the original: `celery` is `holdfast.contrib.celery` in four imports, and CELERY_HOLDFAST_URL is set.
"""

from tests.contrib.celery_apps.shop.celery import app as celery_app

__all__ = ["celery_app"]
