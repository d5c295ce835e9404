"""A secret in a payload, an address, a header and an exception: in no log, error, page, metric or trace."""

from __future__ import annotations

import base64
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import Holdfast
from holdfast.errors import RequestConflict
from tests.server.security.gate import Gate
from tests.server.setting import Client

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


def check_clean(texts: list[str], *secrets: str) -> None:
    """None of the texts has the canary, in any spelling, or one of these."""
    for text in texts:
        found = [word for word in (*SPELLED, *secrets) if word in text]
        assert not found, text[max(0, text.index(found[0]) - 500) :][:2_000]


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Of all spans that are made in this process, that of the server."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    return exporter


def test_the_canary_is_nowhere(gate: Gate, logged: Records, exporter: InMemorySpanExporter) -> None:
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

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(type(gate.store), "workers", fails)
        assert ask(admin, "GET", "/v1/workers") == 500
    # on pages for those who look, and in metrics
    for path in ("/v1/tasks", f"/v1/tasks/{task_id}", f"/v1/tasks/{task_id}/history", f"/v1/tasks/{task_id}/why"):
        assert ask(reader, "GET", path) == 200
    for path in ("/v1/dead-letters", "/v1/dead-letters/by-error", "/v1/queues", "/metrics", "/openapi.json"):
        assert ask(reader, "GET", path) == 200
    # in the spans of a producer that is refused
    with Holdfast(f"http://{gate.token('enqueue:q')}@127.0.0.1:{gate.port}") as app:
        add = app.task(name="add", queue="q")(lambda password: None).using(request_id="once")
        add.enqueue("plain")
        with pytest.raises(RequestConflict) as refused:
            add.enqueue(CANARY)
    answers.append(repr(refused.value))
    spans = exporter.get_finished_spans()
    assert [(span.name, span.status.status_code.name) for span in spans] == [("send q", "UNSET"), ("send q", "ERROR")]
    check_clean([span.to_json() for span in spans])
    check_clean(answers)
    check_clean(logged.lines)
    assert any("RuntimeError" in text for text in logged.lines), "what went wrong is in the log all the same"


def test_a_token_is_in_no_log(gate: Gate, logged: Records) -> None:
    token = gate.token("read")
    client = gate.with_token(token)
    for path in ("/v1/whoami", "/v1/nothing", "/v1/tasks?limit=0", f"/v1/tasks/{token}"):
        client.send("GET", path)
    secret = token.split("_")[2]
    assert not [line for line in logged.lines if secret in line]
