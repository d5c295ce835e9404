"""A server whose memory is full takes no new tasks, lets the workers drain it, and takes new ones again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.core.task import State
from holdfast.errors import StoreFull
from tests.servers.flavours import FAST, Flavour
from tests.servers.redis_server import RedisServer
from tests.support import eventually, run_holdfast, run_worker
from tests.worker.apps.jobs import make_app

APP = "tests.worker.apps.jobs:app"
MAX_MEMORY_BYTES = 12 * 1024 * 1024
PAYLOAD = "x" * 20_000

pytestmark = pytest.mark.slow


@pytest.fixture
def small_server(flavour: Flavour) -> Iterator[RedisServer]:
    # Connections count too, and a worker has some: their buffers must not fill it.
    settings = {"maxmemory": MAX_MEMORY_BYTES, "maxmemory-policy": "noeviction", "maxmemory-clients": "4mb"}
    with RedisServer(flavour, profile={**FAST, **settings}) as server:
        yield server
