"""A store in a file, and the app of the tests on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.worker.apps.jobs import make_app


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


@pytest.fixture
def jobs(url: str) -> Iterator[Holdfast]:
    with make_app(url) as app:
        yield app
