"""A store in a file, and the app of the tests on it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.servers.postgres_shared import shared_durable_postgres
from tests.servers.shared import shared_durable_server
from tests.worker.apps.jobs import make_app


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tasks.db"
    if request.param == "postgres":
        server = shared_durable_postgres().heal()
        return server.url(server.make_database())
    return f"{shared_durable_server('redis').heal().url}?prefix=worker-{secrets.token_hex(6)}"


@pytest.fixture
def jobs(url: str) -> Iterator[Holdfast]:
    with make_app(url) as app:
        yield app
