"""Stores of every kind: with a stepped clock, and by URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.testing.kit.harness import StoreHarness
from tests.stores.harnesses import HARNESSES
from tests.worker.conftest import url

__all__ = ["url"]


@pytest.fixture(params=["sqlite-file", "redis", "postgres"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> StoreHarness:
    return HARNESSES[request.param](tmp_path)
