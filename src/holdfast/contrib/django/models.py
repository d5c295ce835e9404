"""The model that gives Django's admin and permissions a name for schedules: it has no table."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models


class _NoRows(models.Manager):  # type: ignore[misc]  # Django has no types
    def get_queryset(self) -> Any:
        """Nothing: schedules are in the store, and commands such as `dumpdata` ask every model for its rows."""
        return super().get_queryset().none()


class TaskSchedule(models.Model):  # type: ignore[misc]  # Django has no types
    """A schedule of a Holdfast store."""

    name = models.CharField(primary_key=True, max_length=128)

    objects = _NoRows()

    class Meta:
        """No table; its manager gives no rows to any command."""

        managed = False
        verbose_name = "schedule"
        base_manager_name = "objects"
        ordering: ClassVar[list[str]] = ["name"]

    def __str__(self) -> str:
        return str(self.name)
