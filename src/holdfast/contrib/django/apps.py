"""The Django app: in INSTALLED_APPS it brings `manage.py holdfast_worker`."""

from __future__ import annotations

from django.apps import AppConfig


class HoldfastConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """Has one model, without a table: schedules in Django's admin."""

    name = "holdfast.contrib.django"
    label = "holdfast"
    verbose_name = "Holdfast"
