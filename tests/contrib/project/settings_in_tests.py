"""The settings of the same project for its own tests: another BACKEND, the rest of TASKS as it is."""

from __future__ import annotations

from typing import Any

from tests.contrib.project import settings
from tests.contrib.project.settings import DATABASES, LOGGING_CONFIG, SECRET_KEY, TIME_ZONE, USE_TZ

__all__ = ["DATABASES", "INSTALLED_APPS", "LOGGING_CONFIG", "SECRET_KEY", "TASKS", "TIME_ZONE", "USE_TZ"]

INSTALLED_APPS = [*settings.INSTALLED_APPS, "django.contrib.contenttypes"]
_options = settings.TASKS["default"]["OPTIONS"]
_TEST = {**settings.TASKS["default"], "BACKEND": "holdfast.contrib.django.testing.TestBackend"}
TASKS: dict[str, dict[str, Any]] = {
    "default": _TEST,
    "after_commit": {**_TEST, "OPTIONS": {**_options, "on_commit": True}},
    "joined": {**_TEST, "OPTIONS": {**_options, "database": "default"}},
    "raising": {**_TEST, "OPTIONS": {**_options, "raises": True}},
    "lazy": {**_TEST, "OPTIONS": {**_options, "eager": False}},
}
