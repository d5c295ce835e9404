"""Server-sent events: everything first, then what changes, for all listeners from one look."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.server.events import Feed
from holdfast.server.server import ServerSettings
from holdfast.stores import documents
from holdfast.stores.contract import QueueCounts
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from tests.server.setting import Anybody, Client, RunningServer, inside, running_server, sqlite_server
from tests.support import eventually


class Stream:
    """The events of one listener."""

    def __init__(self, port: int, token: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self._connection.request("GET", "/v1/events", headers={"Authorization": f"Bearer {token}"} if token else {})
        self.response = self._connection.getresponse()
        self._events = self._read()

    def next(self, name: str) -> dict[str, Any]:
        """The next event of this name."""
        for event, data in self._events:
            if event == name:
                return data
        raise AssertionError(f"the stream ended without another {name}")

    def ended(self) -> bool:
        return not list(self._events)

    def close(self) -> None:
        self._connection.close()

    def _read(self) -> Iterator[tuple[str, dict[str, Any]]]:
        event = ""
        for line in iter(self.response.readline, b""):
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "event":
                event = value
            elif field == "data":
                yield event, json.loads(value)


@contextmanager
def _listening(port: int) -> Iterator[Stream]:
    stream = Stream(port)
    try:
        yield stream
    finally:
        stream.close()


def test_a_listener_is_told_everything_and_then_what_changes(server: RunningServer, client: Client) -> None:
    client.enqueue("a")
    with _listening(server.port) as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        first = stream.next("queues")
        assert first["complete"] is True
        assert [(row["queue"], row["states"]) for row in first["queues"]] == [("a", {"ready": 1})]
        assert stream.next("workers")["workers"] == []
        client.enqueue("b")
        change = stream.next("queues")
        while not any(row["queue"] == "b" for row in change["queues"]):
            change = stream.next("queues")
        assert change["complete"] is False
        client.post("/v1/workers/node-1/announce", {"queues": ["a"], "types": ["add"]})
        assert [worker["worker_id"] for worker in stream.next("workers")["workers"]] == ["node-1"]
        client.post("/v1/workers/node-1/announce", {"queues": ["a"], "types": ["add"], "ttl": 0})
        assert stream.next("workers")["gone"] == ["node-1"]


def test_listeners_share_one_look_and_leave_no_trace(tmp_path: Path) -> None:
    class Counted(PassingStore):
        looks = 0

        async def counts(self) -> list[QueueCounts]:
            self.looks += 1
            return await super().counts()

    with running_server(
        lambda: Counted(open_store(f"sqlite:///{tmp_path}/tasks.db")), settings=ServerSettings(maintenance=False)
    ) as server:
        streams = [Stream(server.port) for _ in range(10)]
        client = Client(server.port)
        client.enqueue("a")
        for stream in streams:
            stream.next("queues")
            assert stream.next("queues")["complete"] is False
        store = inside(server)
        assert isinstance(store, Counted)
        assert store.looks < 10
        for stream in streams:
            stream.close()
        eventually(lambda: server.service.feed.listeners == 0)
        client.close()


def test_a_listener_that_reads_its_first_event_slowly_is_told_of_what_came_meanwhile(tmp_path: Path) -> None:
    class Watched(PassingStore):
        """Knows when it was looked at for the second time."""

        looked_again = asyncio.Event()
        looks = 0

        async def counts(self) -> list[QueueCounts]:
            self.looks += 1
            if self.looks > 1:
                self.looked_again.set()
            return await super().counts()

    async def listen() -> bytes:
        store = Watched(open_store(f"sqlite:///{tmp_path}/tasks.db"))
        await store.migrate()
        feed = Feed(store, read_seconds=0.01)
        events = await feed.listen(Anybody())
        try:
            async with asyncio.timeout(5):
                await anext(events)
                await documents.pause(store, "late", True)
                await store.looked_again.wait()
                return await anext(events)
        finally:
            await feed.close()
            await store.close()

    assert b"late" in asyncio.run(listen())


def test_the_streams_end_when_the_server_leaves(tmp_path: Path) -> None:
    with sqlite_server(tmp_path, ServerSettings(maintenance=False)) as server:
        stream = Stream(server.port)
        stream.next("workers")
    assert stream.ended()
    stream.close()


def test_a_store_that_is_away_is_told_before_the_stream_begins(tmp_path: Path) -> None:
    class Away(PassingStore):
        async def counts(self) -> list[QueueCounts]:
            raise StoreUnavailable("away")

    with running_server(
        lambda: Away(open_store(f"sqlite:///{tmp_path}/tasks.db")), settings=ServerSettings(maintenance=False)
    ) as server:
        client = Client(server.port)
        assert client.get("/v1/events", 503)["type"].endswith("store-unavailable")
        client.close()


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_only_get_listens(client: Client, method: str) -> None:
    assert client.send(method, "/v1/events", {}).status == 405


def test_head_is_answered_and_the_connection_goes_on(server: RunningServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    with closing(connection):
        for method, path in (("HEAD", "/v1/events"), ("GET", "/v1/queues")):
            connection.request(method, path)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
