"""Bodies that are under way have room for so much, all together, and give it back however they end."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.api import bodies
from holdfast.api.gateway import GatewaySettings
from holdfast.core.task import Enqueued, NewTask
from holdfast.stores.contract import Store
from holdfast.wire.limits import MAX_BODY_BYTES, SMALL_BODY_BYTES
from tests.api.setting import Client, RunningServer, sqlite_server
from tests.remote.calling import with_store
from tests.support import eventually

_ROOM = 1_000_000
_LARGE = {"type": "add", "arguments": {"x": "y" * 250_000}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with sqlite_server(tmp_path, GatewaySettings(upkeep=False, max_bodies_bytes=_ROOM)) as running:
        yield running


def _begun(server: RunningServer, size: int, path: str = "/v1/tasks") -> socket.socket:
    """A body of which so much was sent, and that is not at its end."""
    sender = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked"
    sender.sendall(f"{head}\r\n\r\nfffffff\r\n".encode() + b" " * size)
    eventually(lambda: _taken(server) == size - SMALL_BODY_BYTES, 10, "what was sent is counted")
    return sender


def _taken(server: RunningServer) -> int:
    return server.gateway.body_room.taken


def test_what_there_is_no_room_for_is_to_be_sent_again(server: RunningServer, client: Client) -> None:
    with _begun(server, _ROOM):
        refused = client.send("POST", "/v1/queues/q/tasks", _LARGE)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.json["type"].endswith(":busy")
        client.enqueue("q")  # small ones need no room
        assert _taken(server) == _ROOM - SMALL_BODY_BYTES
    eventually(lambda: _taken(server) == 0, 10, "the room of a client that has gone is free")
    assert client.send("POST", "/v1/queues/q/tasks", _LARGE).status == 201
    assert _taken(server) == 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b" " * 500_000, 400),
        (b"\xff" * 500_000, 400),
        (b'{"type": "add", "colour": "%b"}' % (b"x" * 500_000), 422),
        (json.dumps({"tasks": [_LARGE, {"type": "a b"}]}).encode(), 422),
        (json.dumps({"tasks": [_LARGE] * 2}).encode(), 200),
        (b'{"tasks": [%b]}' % (b"1," * 600_000), 503),
    ],
)
def test_room_is_free_again_after_every_answer(server: RunningServer, client: Client, body: bytes, status: int) -> None:
    assert client.send("POST", "/v1/queues/q/tasks", body).status == status
    assert _taken(server) == 0


def test_room_is_free_again_after_a_body_that_came_too_slowly(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "_PATIENCE_SECONDS", 0.5)
    with _begun(server, 500_000) as sender:
        assert sender.recv(12) == b"HTTP/1.1 408"
        eventually(lambda: _taken(server) == 0, 10, "its room is free")


def test_room_is_free_again_after_a_body_that_was_too_large(server: RunningServer) -> None:
    with _begun(server, 500_000, "/v1/tasks/x/ack") as sender:
        sender.sendall(b" " * (MAX_BODY_BYTES - 500_000 + 1))
        assert sender.recv(12) == b"HTTP/1.1 413"
    eventually(lambda: _taken(server) == 0, 10, "its room is free")


def test_a_remote_store_comes_again_when_there_is_room(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    task = NewTask(task_id="0" * 31 + "1", type="add", queue="q", payload=json.dumps(_LARGE).encode())
    grow = bodies.BodyShare.grow
    sender = _begun(server, _ROOM)

    def grow_or_leave(share: bodies.BodyShare, body_bytes: int) -> bool:
        fits = grow(share, body_bytes)
        if not fits:
            sender.close()
        return fits

    async def enqueue(store: Store) -> list[Enqueued]:
        return await store.enqueue([task])

    monkeypatch.setattr(bodies.BodyShare, "grow", grow_or_leave)
    (recorded,) = with_store(server.url, enqueue)
    assert recorded.created
    assert sender.fileno() == -1
