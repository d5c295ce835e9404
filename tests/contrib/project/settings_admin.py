"""The settings of the same project with Django's admin, and with a second store."""

from __future__ import annotations

import os
from typing import Any

from tests.contrib.project import settings
from tests.contrib.project.settings import DATABASES, LOGGING_CONFIG, SECRET_KEY, TIME_ZONE, USE_TZ

__all__ = ["DATABASES", "INSTALLED_APPS", "LOGGING_CONFIG", "SECRET_KEY", "TASKS", "TIME_ZONE", "USE_TZ"]

ROOT_URLCONF = "tests.contrib.project.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ALLOWED_HOSTS = ["*"]
STATIC_URL = "static/"
_CONTRIB = ("admin", "auth", "contenttypes", "sessions", "messages", "staticfiles")
INSTALLED_APPS = [*settings.INSTALLED_APPS, *(f"django.contrib.{name}" for name in _CONTRIB)]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
_default = settings.TASKS["default"]
TASKS: dict[str, dict[str, Any]] = {
    **settings.TASKS,
    "other": {**_default, "OPTIONS": {**_default["OPTIONS"], "url": f"{os.environ['CASE_STORE']}.other"}},
}
