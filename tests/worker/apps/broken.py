"""Cannot be imported."""

from __future__ import annotations

raise ValueError("the settings are missing")
