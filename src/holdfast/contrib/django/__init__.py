"""Holdfast as a backend of Django's tasks, and the worker that runs them."""

from __future__ import annotations

from holdfast.contrib.django.backend import HoldfastBackend
from holdfast.contrib.django.policy import policy

__all__ = ["HoldfastBackend", "policy"]
