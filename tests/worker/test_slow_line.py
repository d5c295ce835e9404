"""A line that is too slow for a batch of large tasks: they are run all the same, each once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast.core.task import State
from tests.remote.holdfast_server import holdfast_server
from tests.servers.proxy import FaultProxy, LineFaults
from tests.servers.urls import fresh_store
from tests.servers.wire import AnyWire
from tests.support import eventually
from tests.worker.apps.jobs import make_app
from tests.worker.helpers import working

BYTES_PER_SECOND = 1_500_000


@dataclass(frozen=True)
class Line:
    """The store as its producer reaches it, and as the worker does."""

    near: str
    slow: str


@pytest.fixture(params=["redis", "postgres", "http"])
def line(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Line]:
    rate = LineFaults(bytes_per_second=BYTES_PER_SECOND)
    with ExitStack() as stack:
        if request.param == "http":
            server = stack.enter_context(holdfast_server(tmp_path, fresh_store("redis", tmp_path)))
            url, near = server.url("work:*"), server.store_url
        else:
            url = near = fresh_store(request.param, tmp_path)
        place = urlsplit(url)
        assert place.port
        proxy = stack.enter_context(FaultProxy(("127.0.0.1", place.port), wire=AnyWire, faults=rate))
        yield Line(near, proxy.url_for(url))


def test_large_tasks_come_over_a_slow_line(line: Line) -> None:
    """24 tasks of 250 kB at 1.5 MB/s: 4 s for all, where a try without a byte ends after 2.5 s."""
    count = 24
    with make_app(line.near) as jobs:
        task_type = jobs.task_types["measures"]
        handles = jobs.enqueue_many(task_type.prepare("x" * 250_000) for _ in range(count))
        with working(line.slow, "--concurrency", str(count), "--lease", "30s") as worker:
            for handle in handles:
                eventually(lambda handle=handle: handle.status().state is State.SUCCEEDED, 120)  # type: ignore[misc]
            assert "does not answer" not in worker.output()
        assert {handle.status().deliveries for handle in handles} == {1}
