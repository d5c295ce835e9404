"""How much one caller may ask for."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.security.tokens import Rate
from holdfast.stores.remote.limits import MAX_BODY_BYTES
from tests.server.security.gate import Gate, open_gate
from tests.server.setting import Answer, Client
from tests.support import eventually


def test_a_rate_is_kept_and_says_when_to_come_again(gate: Gate) -> None:
    token = gate.token("read", rate=Rate.parse("5/m"))
    client, other = gate.with_token(token), gate.client("read")
    answers = [client.send("GET", "/v1/whoami") for _ in range(7)]
    assert [answer.status for answer in answers] == [200] * 5 + [429] * 2
    refused = answers[-1]
    assert 1 <= int(refused.headers["retry-after"]) <= 12
    assert refused.json["detail"] == "this token may make 5/m requests"
    assert refused.json["retry_after"] == int(refused.headers["retry-after"])
    assert gate.with_token(token).send("GET", "/v1/whoami").status == 429  # by token, not by connection
    other.get("/v1/whoami")


def test_a_rate_comes_back(gate: Gate) -> None:
    client = gate.client("read", rate=Rate.parse("2/s"))
    while client.send("GET", "/v1/whoami").status == 200:
        pass
    eventually(lambda: client.send("GET", "/v1/whoami").status == 200, 10)


def test_refused_requests_count_too(gate: Gate) -> None:
    """Otherwise whoever has a token could try routes as fast as he likes."""
    client = gate.client("read", rate=Rate.parse("3/m"))
    statuses = [client.send("POST", "/v1/store/prune", {}).status for _ in range(5)]
    assert statuses == [403] * 3 + [429] * 2


def test_a_token_has_so_many_waiting_requests_and_no_more(tmp_path: Path) -> None:
    with open_gate(tmp_path, max_waiting=2) as gate:
        token = gate.token("work:mail", "read")
        other = gate.client("work:mail")
        body = {"worker_id": "w", "queues": ["mail"], "wait": "20s"}
        answers: list[Answer] = []

        def poll() -> None:
            answers.append(gate.with_token(token).send("POST", "/v1/reserve", body))

        threads = [threading.Thread(target=poll, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        eventually(lambda: gate.server.service.waiters.waiting == 2, 10, "two wait")
        client = gate.with_token(token)
        refused = [
            client.send("POST", "/v1/reserve", body),
            client.send("POST", "/v1/store/wait", {"wakeups": ["mail"], "timeout_ms": 5_000}),
            client.send("GET", "/v1/events"),
        ]
        assert [answer.status for answer in refused] == [429] * 3
        assert refused[0].headers["retry-after"] == "1"
        assert client.send("POST", "/v1/reserve", {**body, "wait": 0}).status == 200
        admin = gate.client("admin")
        for _ in range(2):
            admin.enqueue("mail")
        for thread in threads:
            thread.join(20)
        assert [len(answer.json["tasks"]) for answer in answers] == [1, 1]
        assert other.send("POST", "/v1/reserve", {**body, "wait": "10ms"}).status == 200
        assert client.send("POST", "/v1/reserve", {**body, "wait": "10ms"}).status == 200  # places are free again


@pytest.fixture
def admin(gate: Gate) -> Client:
    return gate.client("admin")


def _post(client: Client, body: bytes, path: str = "/v1/queues/q/tasks", **headers: str) -> Answer:
    return client.send("POST", path, body, headers)


def test_bodies_are_limited_before_they_are_read(gate: Gate) -> None:
    admin = gate.client("admin")
    body = json.dumps({"type": "add", "arguments": {"x": "y" * MAX_BODY_BYTES}}).encode()
    assert _post(gate.client("admin"), body, "/v1/tasks/" + "0" * 32 + "/ack").status == 413
    assert _post(admin, b'{"type":' * 100_000).status == 413
    assert _post(gate.client("admin"), b"{}", **{"Content-Length": str(10**12)}).status == 413


@pytest.mark.parametrize("depth", [65, 5_000, 200_000])
def test_arguments_are_not_nested_for_ever(depth: int, admin: Client) -> None:
    nested = b"[" * depth + b"]" * depth
    answer = _post(admin, b'{"type":"add","arguments":{"x":%b}}' % nested)
    assert answer.status in (400, 413)
    assert len(answer.body) < 1_000


def test_headers_are_limited(gate: Gate) -> None:
    client = gate.client("admin")
    assert client.send("GET", "/v1/whoami", headers={"X-Large": "x" * 20_000}).status == 200
    answer = client.send("GET", "/v1/whoami", headers={"X-Large": "x" * 40_000})
    assert answer.status == 431
    assert gate.client("admin").send("GET", "/v1/whoami?" + "x" * 40_000).status == 431


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"add","arguments":{"x":NaN}}',
        b'{"type":"add"',
        b"\xff\xfe{}",
        b'{"type":"add"} {"type":"add"}',
        b'{"type":"add","arguments":{"x":"\xed\xa0\x80"}}',
        b"",
        b"null",
    ],
)
def test_what_is_no_json_in_utf_8_is_refused(body: bytes, admin: Client) -> None:
    answer = _post(admin, body)
    assert answer.status in (400, 422)


def test_batches_are_limited(admin: Client) -> None:
    tasks: list[Any] = [{"type": "add", "queue": "q"}] * 1_001
    assert admin.send("POST", "/v1/tasks", {"tasks": tasks}).status == 422
    assert admin.send("POST", "/v1/store/get", {"task_ids": ["0" * 32] * 1_001}).status == 422
