"""A request that is refused while its body is being sent: the client gets to see the refusal, and no more than that."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.ids import IdSource
from holdfast.core.task import NewTask
from holdfast.errors import BadUrl, NotAllowed
from holdfast.server import edge
from holdfast.stores.open import open_store
from tests.server.security.gate import Gate, open_gate
from tests.server.security.raw import answer_of, connected, rest
from tests.support import eventually

LARGE = 5_000_000


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with open_gate(tmp_path) as gate:
        yield gate


def _head(gate: Gate, *more: str) -> bytes:
    """Of a request that is refused because of its token."""
    lines = [
        "POST /v1/queues/q/tasks HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {gate.token('work:q')}",
        "Content-Type: application/json",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def _connections(gate: Gate) -> int:
    return len(gate.server.server.server_state.connections)


def test_a_client_that_sends_everything_first_sees_the_refusal_and_goes_on(gate: Gate) -> None:
    with connected(gate) as connection:
        for _ in range(2):
            connection.sendall(_head(gate, f"Content-Length: {LARGE}"))
            connection.sendall(b"x" * LARGE)
            assert answer_of(connection).startswith(b"HTTP/1.1 403 ")
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in answer_of(connection)


@pytest.mark.parametrize("framing", [f"Content-Length: {LARGE}", "Transfer-Encoding: chunked"])
def test_a_client_that_wants_the_connection_closed_sees_the_refusal_too(gate: Gate, framing: str) -> None:
    body = b"x" * LARGE if "Length" in framing else b"%x\r\n%b\r\n0\r\n\r\n" % (LARGE, b"x" * LARGE)
    with connected(gate) as connection:
        connection.sendall(_head(gate, "Connection: close", framing))
        connection.sendall(body)
        answer = b""
        while data := connection.recv(65_536):  # a reset would be an error
            answer += data
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert answer.count(b"HTTP/1.1") == 1
    eventually(lambda: _connections(gate) == 0, 5)


def test_producers_with_a_wrong_token_are_told_so_and_do_not_try_again(gate: Gate) -> None:
    ids = IdSource(lambda: int(time.time() * 1000), os.urandom)
    payload = b'{"x":"%b"}' % (b"y" * 200_000)
    tasks = [NewTask(task_id=ids.task_id(), type="t", queue="q", payload=payload) for _ in range(LARGE // 200_000)]

    async def enqueue(token: str) -> None:
        store = open_store(f"http://{token}@127.0.0.1:{gate.port}?deadline=4s")
        try:
            await store.enqueue(tasks)
        finally:
            await store.close()

    with pytest.raises(NotAllowed):
        asyncio.run(enqueue(gate.token("work:q")))
    with pytest.raises(BadUrl, match="refused this token"):
        asyncio.run(enqueue("hf_000000000000_" + "0" * 64))


@pytest.mark.parametrize("more", [["Connection: close"], []])
def test_a_body_without_end_is_cut(gate: Gate, monkeypatch: pytest.MonkeyPatch, more: list[str]) -> None:
    monkeypatch.setattr(edge, "DROP_BYTES", 1_000_000)
    with connected(gate) as connection:
        connection.sendall(_head(gate, "Transfer-Encoding: chunked", *more))
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            connection.sendall(b"10000\r\n%b\r\n" % (b"x" * 0x10000) * 1_000)
    eventually(lambda: _connections(gate) == 0, 5)


def test_a_body_that_is_declared_too_long_to_be_dropped_is_refused_at_once(gate: Gate) -> None:
    with connected(gate) as connection:
        connection.sendall(_head(gate, f"Content-Length: {edge.DROP_BYTES + 1}"))
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize("more", [["Connection: close"], []])
def test_a_body_that_does_not_come_is_not_waited_for(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.setattr(edge, "DROP_SECONDS", 0.2)
    with connected(gate) as connection:
        connection.sendall(_head(gate, "Content-Length: 1000", *more) + b"x")
        answer = rest(connection)  # to the end of the connection: what comes next on it would not be a request
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert answer.lower().count(b"connection: close") == 1
    eventually(lambda: _connections(gate) == 0, 5)


def test_a_refused_body_is_dropped_before_the_answer_and_the_connection_is_kept(gate: Gate) -> None:
    with connected(gate) as connection:
        connection.sendall(_head(gate, "Content-Length: 40000") + b"x" * 20_000)
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(10)
        connection.sendall(b"x" * 20_000)
        assert answer_of(connection).startswith(b"HTTP/1.1 403 ")
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in answer_of(connection)
