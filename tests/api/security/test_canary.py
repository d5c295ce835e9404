"""A secret in a payload, an address, a header and an exception: it is in no log, no error, no page, no metric."""

from __future__ import annotations

import base64
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.security.gate import Gate
from tests.api.setting import Client

CANARY = "canary7f3a9c"
SPELLED = (CANARY, *(base64.b64encode(b"x" * pad + CANARY.encode())[4:12].decode() for pad in range(3)))


class Records(logging.Handler):
    """All that is logged, whoever logs it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        formatted = logging.Formatter("%(name)s %(message)s").format(record)
        self.lines.append(f"{formatted} {record.__dict__}")


@pytest.fixture
def logged() -> Iterator[Records]:
    records, root = Records(), logging.getLogger()
    level = root.level
    root.addHandler(records)
    root.setLevel(logging.DEBUG)
    yield records
    root.removeHandler(records)
    root.setLevel(level)


def _clean(texts: list[str]) -> None:
    for text in texts:
        assert not [word for word in SPELLED if word in text], text[:2_000]


def test_the_canary_is_nowhere(gate: Gate, logged: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    admin, reader, nobody = gate.client("admin"), gate.client("read"), gate.with_token(None)
    answers: list[str] = []

    def ask(client: Client, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> int:
        answer = client.send(method, path, body, headers)
        answers.append(f"{answer.headers} {answer.body.decode('utf-8', 'replace')}")
        return answer.status

    # in a payload: of tasks that are recorded, refused, failed
    task = {"type": "add", "arguments": {"password": CANARY}, "headers": {"authorization": CANARY}}
    task_id = admin.enqueue("q", **{key: value for key, value in task.items() if key != "type"})
    assert ask(admin, "POST", "/v1/queues/q/tasks", {**task, "priority": "high"}) == 422
    assert ask(admin, "POST", "/v1/queues/q/tasks", {**task, "arguments": [CANARY]}) == 422
    assert ask(admin, "POST", "/v1/queues/q/tasks", f'{{"type":"add","x":"{CANARY}'.encode()) == 400
    assert ask(admin, "POST", "/v1/store/enqueue", {"tasks": [{"payload": CANARY}]}) == 422
    (claim,) = admin.reserve("q")
    error = {"type": "ValueError", "message": f"password={CANARY}", "traceback": f"token: {CANARY}"}
    fail = {"token": claim["token"], "error": error, "retryable": False}
    assert ask(admin, "POST", f"/v1/tasks/{task_id}/fail", fail) == 200
    # in an address
    assert ask(nobody, "GET", f"/v1/tasks?token={CANARY}") == 401
    assert ask(reader, "GET", f"/v1/tasks?access_token={CANARY}") in (200, 422)
    assert ask(reader, "GET", f"/{CANARY}") == 404
    # in a header
    for header in ({"Authorization": f"Bearer {CANARY}"}, {"Cookie": CANARY}, {"X-Forwarded-For": CANARY}):
        assert ask(nobody, "GET", "/v1/tasks", headers=header) == 401
    assert ask(admin, "POST", "/v1/tasks", {}, {"Origin": f"https://{CANARY}"}) == 403
    assert ask(admin, "GET", "/v1/tasks", headers={"Host": CANARY}) == 421
    with socket.create_connection(("127.0.0.1", gate.port), 10) as line:
        line.sendall(f"{CANARY}\r\n\r\n".encode())
        answers.append(line.recv(65_536).decode())

    # in an exception
    async def fails(*_: Any) -> Any:
        raise RuntimeError(CANARY)

    monkeypatch.setattr(type(gate.store), "workers", fails)
    assert ask(admin, "GET", "/v1/workers") == 500
    monkeypatch.undo()
    # on pages for those who look, and in metrics
    for path in ("/v1/tasks", f"/v1/tasks/{task_id}", f"/v1/tasks/{task_id}/history", f"/v1/tasks/{task_id}/why"):
        assert ask(reader, "GET", path) == 200
    for path in ("/v1/dead-letters", "/v1/dead-letters/by-error", "/v1/queues", "/metrics", "/openapi.json"):
        assert ask(reader, "GET", path) == 200
    _clean(answers)
    _clean(logged.lines)
    assert any("RuntimeError" in text for text in logged.lines), "what went wrong is in the log all the same"


def test_a_token_is_in_no_log(gate: Gate, logged: Records) -> None:
    token = gate.token("read")
    client = gate.with_token(token)
    for path in ("/v1/whoami", "/v1/nothing", "/v1/tasks?limit=0", f"/v1/tasks/{token}"):
        client.send("GET", path)
    secret = token.split("_")[2]
    assert not [line for line in logged.lines if secret in line]
