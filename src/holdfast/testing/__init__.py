"""Tests of applications that enqueue tasks; the kit for authors of stores is `holdfast.testing.kit`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.app_test import AppTest, arun_due, eager, in_memory, run_due
    from holdfast.testing.asserts import assert_enqueued, assert_not_enqueued
    from holdfast.testing.worker import Ran

__all__ = [
    "AppTest",
    "Ran",
    "arun_due",
    "assert_enqueued",
    "assert_not_enqueued",
    "eager",
    "in_memory",
    "run_due",
]

_ELSEWHERE = {"Ran": "worker", "assert_enqueued": "asserts", "assert_not_enqueued": "asserts"}


def __getattr__(name: str) -> Any:
    """Imports a name when it is used: every pytest run loads the plugin, and few use it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'app_test')}"), name)
