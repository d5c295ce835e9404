"""Bodies that are under way have room for so much, all together, and give it back however they end."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.task import Enqueued, NewTask
from holdfast.server import bodies, budgets, edge
from holdfast.server.server import ServerSettings
from holdfast.stores.contract import Store
from holdfast.stores.remote.limits import MAX_BODY_BYTES, SMALL_BODY_BYTES
from tests.remote.calling import with_store
from tests.server.setting import Client, RunningServer, sqlite_server
from tests.support import eventually

_ROOM = 2_000_000
#: What one token may have of it.
_SHARE = _ROOM // 2
_LARGE = {"type": "add", "arguments": {"x": "y" * 250_000}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with sqlite_server(tmp_path, ServerSettings(maintenance=False, max_bodies_bytes=_ROOM)) as running:
        yield running


def _begun(server: RunningServer, size: int, path: str = "/v1/tasks") -> socket.socket:
    """A body of which so much was sent, and that is not at its end."""
    sender = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked"
    sender.sendall(f"{head}\r\n\r\nfffffff\r\n".encode() + b" " * size)
    eventually(lambda: _taken(server) == size - SMALL_BODY_BYTES, 10, "what was sent is counted")
    return sender


def _taken(server: RunningServer) -> int:
    return server.service.body_room.taken


def test_what_there_is_no_room_for_is_to_be_sent_again(
    server: RunningServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "ROOM_SECONDS", 0.2)
    with _begun(server, _SHARE):
        refused = client.send("POST", "/v1/queues/q/tasks", _LARGE)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.json["type"].endswith(":busy")
        client.enqueue("q")  # small ones need no room
        assert _taken(server) == _SHARE - SMALL_BODY_BYTES
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
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.5)
    with _begun(server, 500_000) as sender:
        assert sender.recv(12) == b"HTTP/1.1 408"
        eventually(lambda: _taken(server) == 0, 10, "its room is free")


def test_room_is_free_again_after_a_body_that_was_too_large(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "DROP_SECONDS", 0.2)
    with _begun(server, 500_000, "/v1/tasks/x/ack") as sender:
        sender.sendall(b" " * (MAX_BODY_BYTES - 500_000 + 1))
        assert sender.recv(12) == b"HTTP/1.1 413"
    eventually(lambda: _taken(server) == 0, 10, "its room is free")


def test_a_body_waits_for_room(server: RunningServer) -> None:
    task = NewTask(task_id="0" * 31 + "1", type="add", queue="q", payload=json.dumps(_LARGE).encode())
    sender = _begun(server, _SHARE)

    async def enqueue(store: Store) -> list[Enqueued]:
        asked = asyncio.create_task(store.enqueue([task]))
        await asyncio.to_thread(eventually, lambda: server.service.body_room.waiting, 10, "it waits for room")
        sender.close()
        return await asked

    (recorded,) = with_store(server.url, enqueue)
    assert recorded.created


def test_a_token_has_half_of_the_room_and_does_not_keep_others_from_theirs() -> None:
    async def shared() -> None:
        both = budgets.Room(1_000_000)
        evil, other = both.share("evil"), both.share("other")
        await evil.wait(SMALL_BODY_BYTES + 500_000)
        assert not both.share("evil").grow(SMALL_BODY_BYTES + 1)
        more = asyncio.create_task(both.share("evil").wait(SMALL_BODY_BYTES + 400_000))
        await asyncio.sleep(0)
        await other.wait(SMALL_BODY_BYTES + 500_000)  # overtakes who waits for its own token
        assert both.taken == both.max_bytes
        other.give_back()
        assert not more.done()
        evil.give_back()
        await more
        assert both.taken == 400_000

    asyncio.run(shared())


def test_the_first_in_line_is_not_overtaken_by_smaller_ones() -> None:
    async def lined_up() -> list[str]:
        shared, order = budgets.Room(1_000_000), list[str]()

        async def take(token: str, size: int) -> None:
            await shared.share(token).wait(SMALL_BODY_BYTES + size)
            order.append(token)

        first, second = shared.share("a"), shared.share("b")
        await first.wait(SMALL_BODY_BYTES + 450_000)
        await second.wait(SMALL_BODY_BYTES + 450_000)
        waiting = [asyncio.create_task(take("c", 500_000)), asyncio.create_task(take("d", 50_000))]
        await asyncio.sleep(0)
        first.give_back()
        await asyncio.gather(*waiting)
        return order

    assert asyncio.run(lined_up()) == ["c", "d"]


def test_who_is_called_off_while_it_waits_leaves_no_trace() -> None:
    async def called_off() -> tuple[int, int]:
        shared = budgets.Room(1_000_000)
        first = shared.share("a")
        await first.wait(SMALL_BODY_BYTES + 500_000)
        waiting = [asyncio.create_task(shared.share("a").wait(SMALL_BODY_BYTES + 1)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        first.give_back()
        waiting[1].cancel()  # in the moment in which it has got its room
        await asyncio.gather(*waiting, return_exceptions=True)
        return shared.taken, shared.waiting

    assert asyncio.run(called_off()) == (1, 0)
