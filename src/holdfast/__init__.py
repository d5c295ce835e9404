"""Holdfast: a distributed task queue that is fast and never lets go."""

from holdfast.version import __version__

__all__ = ["__version__"]
