"""A store in a file, and the app of the tests on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.servers.urls import STORES, fresh_store
from tests.worker.apps.jobs import make_app

#: Tests of crashes and outages are part of `make test` on every store; `make test-all` runs the others on servers.
ON_EVERY_STORE = {"test_crashes.py", "test_outage.py"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests of workers on a server as long where one on SQLite guards the same code of the worker."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.path.name not in ON_EVERY_STORE:
            parameters = getattr(getattr(item, "callspec", None), "params", {})
            if parameters.get("url") in {"redis", "postgres"}:
                item.add_marker(pytest.mark.long)


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh_store(request.param, tmp_path)


@pytest.fixture
def jobs(url: str) -> Iterator[Holdfast]:
    with make_app(url) as app:
        yield app
