"""A store in a file, and the app of the tests on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.servers.urls import STORES, fresh_store
from tests.worker.apps.jobs import make_app


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh_store(request.param, tmp_path)


@pytest.fixture
def jobs(url: str) -> Iterator[Holdfast]:
    with make_app(url) as app:
        yield app
