"""A store that passes every call on, under the name that tests know it by."""

from __future__ import annotations

from holdfast.stores.passing import PassingStore

__all__ = ["PassingStore"]
