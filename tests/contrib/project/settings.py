"""The places come from the environment, since every case has its own."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

import django

SECRET_KEY = "not one"
USE_TZ = os.environ.get("CASE_USE_TZ", "1") == "1"
TIME_ZONE = "Europe/Berlin"
INSTALLED_APPS = ["holdfast.contrib.django", "tests.contrib.project.jobs"]
if django.VERSION < (6,):
    INSTALLED_APPS.append("django_tasks")
_place = urlsplit(os.environ["CASE_DATABASE"])
DATABASES: dict[str, dict[str, Any]] = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": _place.path}
    if _place.scheme == "sqlite"
    else {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _place.path[1:],
        "USER": _place.username,
        "PASSWORD": _place.password or "",
        "HOST": _place.hostname,
        "PORT": _place.port,
    }
}
_BACKEND = {"BACKEND": "holdfast.contrib.django.HoldfastBackend", "QUEUES": ["default", "mail"]}
_options = {"url": os.environ["CASE_STORE"], "retry": {"max_attempts": 2, "base": 0.01, "give_up_on": ["KeyError"]}}
TASKS: dict[str, dict[str, Any]] = {
    "default": {**_BACKEND, "OPTIONS": _options},
    "after_commit": {**_BACKEND, "OPTIONS": {**_options, "on_commit": True}},
    "limited": {
        **_BACKEND,
        "OPTIONS": {
            **_options,
            "timeout": "1m",
            "hard_timeout": "2m",
            "expires": "1h",
            "run": "process",
            "outgoing": "tests.contrib.project.jobs.tenants.add_tenant",
        },
    },
    "at_once": {**_BACKEND, "OPTIONS": {**_options, "on_commit": False}},
}
if _place.scheme != "sqlite":
    TASKS["joined"] = {**_BACKEND, "OPTIONS": {**_options, "database": "default"}}
LOGGING_CONFIG = None
