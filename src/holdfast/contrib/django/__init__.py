"""Holdfast as a backend of Django's tasks, and the worker that runs them."""

from __future__ import annotations

from holdfast.contrib.django.backend import HoldfastBackend
from holdfast.contrib.django.headers import headers
from holdfast.contrib.django.policy import policy
from holdfast.contrib.django.schedules import cron, every

__all__ = ["HoldfastBackend", "cron", "every", "headers", "policy"]
