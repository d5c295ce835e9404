"""The pytest plugin: fixtures that keep the tasks of an app in memory while a test runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.testing import AppTest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the setting `holdfast_app`."""
    parser.addini("holdfast_app", "The app of the fixtures of Holdfast, as module:attribute", default="")


@pytest.fixture
def holdfast_app(request: pytest.FixtureRequest) -> Holdfast:
    """The app that is tested: the setting `holdfast_app`, or HOLDFAST_APP; a project may define this fixture itself."""
    from holdfast.errors import BadApp
    from holdfast.worker.loading import load_app

    reference = str(request.config.getini("holdfast_app")) or os.environ.get("HOLDFAST_APP", "")
    if not reference:
        raise BadApp(
            'which app? Set holdfast_app = "myproject.tasks:app" in the pytest settings, set HOLDFAST_APP, or define a '
            "fixture holdfast_app in conftest.py that returns it"
        )
    return load_app(reference)


@pytest.fixture
def holdfast_test(holdfast_app: Holdfast) -> Iterator[AppTest]:
    """The app with its tasks in memory and a clock that the test moves: `run_due()` and `advance("1h")` run them."""
    from holdfast.testing import in_memory

    with in_memory(holdfast_app) as test:
        yield test


@pytest.fixture
def holdfast_eager(holdfast_app: Holdfast) -> Iterator[AppTest]:
    """As `holdfast_test`, and every enqueue runs its task at once and raises what it raises."""
    from holdfast.testing import eager

    with eager(holdfast_app) as test:
        yield test
