"""A project as small as it can be: one database, one app, one backend for tasks."""

import os
from pathlib import Path

import django

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "for this example only")
DEBUG = False
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["holdfast.contrib.django", "orders"]
if django.VERSION < (6,):
    INSTALLED_APPS.append("django_tasks")  # Django 6 has tasks of its own

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", BASE_DIR / "shop.db"),
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    }
}

TASKS = {
    "default": {
        "BACKEND": "holdfast.contrib.django.HoldfastBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {
            "url": os.environ.get("HOLDFAST_URL", f"sqlite:///{BASE_DIR}/tasks.db"),
            # Confirmations are enqueued after the commit of the order. With the store in the same PostgreSQL database
            # as the orders, "database": "default" does both in one transaction.
            "retry": {"max_attempts": 5, "base": "1s"},
        },
    }
}
