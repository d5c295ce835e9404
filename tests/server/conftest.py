"""A server of its own for each test, and a client at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.server.server import ServerSettings
from tests.server.setting import Client, RunningServer, sqlite_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """Without maintenance: what a test does not do does not happen."""
    with sqlite_server(tmp_path, ServerSettings(maintenance=False)) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    client = Client(server.port)
    yield client
    client.close()
