"""Clients that are slow on purpose."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from holdfast.api import bodies
from holdfast.api.headers import SECURITY_HEADERS
from holdfast.api.slow_clients import Impatient
from tests.api.security.gate import Gate, open_gate
from tests.api.security.raw import answer_of, connected, rest, use_protocol
from tests.support import eventually

#: What depends on how requests are read; the rest is what happens to a connection, whoever reads.
BOTH = pytest.mark.parametrize("gate", ["httptools", "h11"], indirect=True)


@pytest.fixture(params=["httptools"])
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Gate]:
    """One with less patience, so that tests need not have more."""
    use_protocol(request.param, monkeypatch)
    monkeypatch.setattr(Impatient, "head_seconds", 0.5)
    monkeypatch.setattr(Impatient, "read_seconds", 0.5)
    monkeypatch.setattr(bodies, "_PATIENCE_SECONDS", 0.5)
    with open_gate(tmp_path) as gate:
        yield gate


def _connections(gate: Gate) -> int:
    return len(gate.server.server.server_state.connections)


@BOTH
def test_a_connection_without_a_request_is_closed(gate: Gate) -> None:
    with connected(gate) as connection:
        assert rest(connection) == b""
    eventually(lambda: _connections(gate) == 0, 5)


@BOTH
def test_a_head_that_trickles_in_is_not_waited_for(gate: Gate) -> None:
    """With nothing but uvicorn this goes on for as long as the client likes."""
    begun = time.monotonic()
    with connected(gate) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        connection.settimeout(0.05)
        answer = b""
        while time.monotonic() - begun < 5 and not answer:
            try:
                connection.sendall(b"X-Slow: 1\r\n")
                answer = connection.recv(65_536)
            except TimeoutError:
                continue
            except OSError:
                break
        assert time.monotonic() - begun < 5
    assert answer.startswith(b"HTTP/1.1 408 ")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert json.loads(body)["type"].endswith("too-slow")
    assert all(name in head and value in head for name, value in SECURITY_HEADERS)


@BOTH
def test_the_second_request_of_a_connection_may_not_trickle_in_either(gate: Gate) -> None:
    with connected(gate) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in answer_of(connection)
        connection.sendall(b"GET /healthz HTT")
        assert rest(connection).startswith(b"HTTP/1.1 408 ")


def test_a_connection_that_is_kept_alive_is_not_hurried(gate: Gate) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(gate) as connection:
        connection.sendall(request)
        assert b"200 OK" in answer_of(connection)
        connection.settimeout(1.0)
        with pytest.raises(TimeoutError):  # twice as long as a head may take, and still open
            connection.recv(1)
        connection.sendall(request)
        assert b"200 OK" in answer_of(connection)


def test_a_long_poll_is_not_hurried(gate: Gate) -> None:
    client = gate.client("work:q")
    begun = time.monotonic()
    body = {"worker_id": "w", "queues": ["q"], "wait": "1500ms"}
    assert client.send("POST", "/v1/reserve", body).status == 200
    assert time.monotonic() - begun > 1.0  # twice as long as a head may take


@BOTH
def test_a_body_that_trickles_in_is_not_waited_for(gate: Gate) -> None:
    token = gate.token("enqueue:q")
    head = (
        f"POST /v1/queues/q/tasks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    )
    with connected(gate) as connection:
        connection.sendall(head.encode() + b'{"type":')
        assert rest(connection).startswith(b"HTTP/1.1 408 ")  # and the connection is closed


@BOTH
def test_a_head_without_end_is_cut(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Impatient, "head_seconds", 60)
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
def test_what_is_no_http_is_answered_like_everything_else(rubbish: bytes, gate: Gate) -> None:
    with connected(gate) as connection:
        connection.sendall(rubbish)
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 4")
    assert b"nosniff" in answer
    assert b"application/problem+json" in answer


def test_a_client_that_does_not_read_is_cut(gate: Gate) -> None:
    admin = gate.client("admin")
    large = {"tasks": [{"type": "add", "queue": "q", "arguments": {"x": "y" * 200_000}} for _ in range(60)]}
    assert admin.send("POST", "/v1/tasks", large).status == 200
    token = gate.token("admin")
    with connected(gate) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        request = f"GET /v1/tasks?limit=1000 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        connection.sendall(request.encode())
        eventually(lambda: _connections(gate) == 2, 5, "the other one is being answered")
        eventually(lambda: _connections(gate) == 1, 10, "the other one is cut off")
        assert len(rest(connection)) < 12_000_000


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
