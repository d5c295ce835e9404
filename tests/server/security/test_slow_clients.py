"""Clients that are slow on purpose."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from holdfast.server import bodies, edge
from tests.server.security.gate import Gate, open_gate
from tests.server.security.raw import connected, rest
from tests.support import eventually


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """One with shorter deadlines."""
    monkeypatch.setattr(edge, "READ_SECONDS", 0.5)
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.5)
    with open_gate(tmp_path) as gate:
        yield gate


def _connections(gate: Gate) -> int:
    return len(gate.server.server.server_state.connections)


def test_a_long_poll_is_not_hurried(gate: Gate) -> None:
    client = gate.client("work:q")
    begun = time.monotonic()
    body = {"worker_id": "w", "queues": ["q"], "wait": "1500ms"}
    assert client.send("POST", "/v1/reserve", body).status == 200
    assert time.monotonic() - begun > 1.0  # twice as long as a body may take


def test_a_body_that_trickles_in_is_not_waited_for(gate: Gate) -> None:
    token = gate.token("enqueue:q")
    head = (
        f"POST /v1/queues/q/tasks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    )
    with connected(gate) as connection:
        connection.sendall(head.encode() + b'{"type":')
        assert rest(connection).startswith(b"HTTP/1.1 408 ")  # and the connection is closed


def test_a_head_without_end_is_cut(gate: Gate) -> None:
    with connected(gate) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        connection.settimeout(0.2)
        answer = b""
        for _ in range(20):
            try:
                connection.sendall(b"X-Large: " + b"x" * 8_000 + b"\r\n")
                answer = connection.recv(65_536)
            except TimeoutError:
                continue
            break
        assert answer[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "rubbish", [b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET /\r\n\r\n", b"hello\r\n\r\n", b"\x00" * 100 + b"\r\n\r\n"]
)
def test_what_is_no_http_is_refused_and_the_connection_closed(rubbish: bytes, gate: Gate) -> None:
    with connected(gate) as connection:
        connection.sendall(rubbish)
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in answer.lower()


def test_the_memory_of_an_answer_that_is_not_read_is_given_back(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    admin = gate.client("admin")
    large = {"tasks": [{"type": "add", "queue": "q", "arguments": {"x": "y" * 200_000}} for _ in range(60)]}
    assert admin.send("POST", "/v1/tasks", large).status == 200
    token = gate.token("admin")
    room = gate.server.service.answer_room
    gate.server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)  # else the kernel takes all of it
    with connected(gate) as connection:
        request = f"GET /v1/tasks?limit=1000 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        connection.sendall(request.encode())
        eventually(lambda: room.taken > 3_000_000, 5, "it is being answered")
        eventually(lambda: room.taken == 0, 10, "the answer is given up")
        eventually(lambda: "has read nothing of its answer" in caplog.text, 5)
        assert len(rest(connection)) < 4_000_000  # what was on its way, and the end of the connection
    eventually(lambda: _connections(gate) == 1, 5, "only that of the other client is left")


def test_a_client_that_reads_slowly_gets_its_answer(gate: Gate) -> None:
    admin = gate.client("admin")
    large = {"tasks": [{"type": "add", "queue": "q", "arguments": {"x": "y" * 200_000}} for _ in range(20)]}
    assert admin.send("POST", "/v1/tasks", large).status == 200
    token = gate.token("admin")
    with connected(gate) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        request = f"GET /v1/tasks?limit=1000 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        connection.sendall(request.encode())
        size, begun = 0, time.monotonic()
        wanted = 20 * 200_000
        while size < wanted:
            data = connection.recv(65_536)
            assert data, "cut off"
            size += len(data)
            eventually(partial(_is_past, begun + 1.2 * size / wanted))  # twice the time of one who does not read


def _is_past(moment: float) -> bool:
    return time.monotonic() >= moment
