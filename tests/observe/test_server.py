"""The metrics of a server over HTTP, and its log lines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.observe.logs import JsonLines, of_request
from holdfast.server.server import ServerSettings
from tests.server.setting import Client, RunningServer, sqlite_server

CANARY = "canary-7f3a"
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with sqlite_server(tmp_path, ServerSettings(maintenance=False)) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    client = Client(server.port)
    yield client
    client.close()


def test_a_server_counts_what_goes_through_it(client: Client) -> None:
    body = {"type": "resize", "arguments": {"token": CANARY}, "retry": {"max_attempts": 1}}
    for _ in range(2):
        client.send("POST", "/v1/queues/images/tasks", body)
    claims = client.post("/v1/reserve", {"queues": ["images"], "max_tasks": 2, "worker_id": "w"})["tasks"]
    assert len(claims) == 2
    good, bad = claims
    client.post(f"/v1/tasks/{good['task_id']}/ack", {"token": good["token"]})
    client.post(f"/v1/tasks/{good['task_id']}/ack", {"token": good["token"]})
    client.post(f"/v1/tasks/{good['task_id']}/ack", {"token": "1.1.stale"}, status=409)
    error = {"type": "E", "message": CANARY}
    client.post(f"/v1/tasks/{bad['task_id']}/fail", {"token": bad["token"], "error": error, "retryable": False})
    answer = client.send("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.body.decode().splitlines()
    for line in (
        'holdfast_tasks_enqueued_total{queue="images",type="resize"} 2.0',
        'holdfast_runs_started_total{queue="images",type="resize"} 2.0',
        'holdfast_runs_ended_total{outcome="succeeded",queue="images",type="resize"} 1.0',
        'holdfast_runs_ended_total{outcome="dead_lettered",queue="images",type="resize"} 1.0',
        'holdfast_settlements_refused_total{event="ack",reason="stale_claim"} 1.0',
        'holdfast_queue_tasks{queue="images",state="dead_lettered"} 1.0',
        'holdfast_queue_tasks{queue="images",state="succeeded"} 1.0',
        'holdfast_workers{status="running"} 0.0',
        "holdfast_store_up 1.0",
        "holdfast_maintenance_partitions 0.0",
    ):
        assert line in lines
    assert CANARY not in answer.body.decode()
    assert good["task_id"] not in answer.body.decode()


def test_log_lines_made_for_a_request_have_its_task_and_its_trace(server: RunningServer, client: Client) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonLines())
    handler.addFilter(of_request)
    logger = logging.getLogger("holdfast.server")
    logger.addHandler(handler)

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError(CANARY)

    server.service.store.get = broken  # type: ignore[assignment, method-assign]
    try:
        task_id = "0" * 32
        client.send("GET", f"/v1/tasks/{task_id}", headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
    finally:
        logger.removeHandler(handler)
    (line,) = [json.loads(line) for line in written.getvalue().splitlines()]
    assert (line["task_id"], line["trace_id"], line["level"]) == (task_id, TRACE, "error")
    assert CANARY not in written.getvalue()


PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
OWN = f"00-{'a' * 32}-{'b' * 16}-01"


def headers_of(client: Client, path: str, body: Any, headers: dict[str, str]) -> dict[str, str]:
    """Of the last task that this request has made."""
    made = client.send("POST", path, body, headers).json
    task_id = made["tasks"][-1]["task_id"] if "tasks" in made else made["task_id"]
    found: dict[str, str] = client.get(f"/v1/tasks/{task_id}")["headers"]
    return found


ENQUEUES: list[tuple[str, Any, dict[str, str]]] = [
    ("/v1/queues/q/tasks", {"type": "t", "headers": {"tenant": "7"}}, {"tenant": "7"}),
    ("/v1/queues/q/tasks", {"tasks": [{"type": "t"}, {"type": "t"}]}, {}),
    ("/v1/tasks", {"tasks": [{"type": "t", "queue": "q"}]}, {}),
    ("/v1/schedules/nightly/run", {}, {"schedule": "nightly"}),
]


@pytest.fixture
def scheduled(client: Client) -> Client:
    client.put("/v1/schedules/nightly", {"type": "t", "cron": "0 3 * * *"})
    return client


@pytest.mark.parametrize(("path", "body", "plain"), ENQUEUES)
def test_what_a_request_enqueues_belongs_to_its_trace(
    scheduled: Client, path: str, body: Any, plain: dict[str, str]
) -> None:
    given = {"traceparent": PARENT, "tracestate": "shop=1"}
    assert headers_of(scheduled, path, body, given) == {**plain, **given}
    assert headers_of(scheduled, path, body, {"tracestate": "shop=1"}) == plain


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "00",
        f"{PARENT}0",
        f"ff{PARENT[2:]}",
        PARENT.upper(),
        PARENT.replace(TRACE, "0" * 32),
        f"{PARENT}-{'x' * 999}",
    ],
)
def test_a_traceparent_that_is_none_is_left_out(client: Client, traceparent: str) -> None:
    path, body, plain = ENQUEUES[0]
    assert headers_of(client, path, body, {"traceparent": traceparent}) == plain


@pytest.mark.parametrize("state", ["x" * 513, "caf\xe9=1"])
def test_a_tracestate_that_is_too_long_or_odd_is_left_out(client: Client, state: str) -> None:
    path, body, plain = ENQUEUES[0]
    given = {"traceparent": PARENT, "tracestate": state}
    assert headers_of(client, path, body, given) == {**plain, "traceparent": PARENT}


def test_a_task_with_a_trace_of_its_own_keeps_it(client: Client) -> None:
    body = {"type": "t", "headers": {"traceparent": OWN}}
    given = {"traceparent": PARENT, "tracestate": "shop=1"}
    assert headers_of(client, "/v1/queues/q/tasks", body, given) == {"traceparent": OWN}


def test_a_repeat_in_another_trace_is_still_a_repeat(client: Client) -> None:
    key = {"Idempotency-Key": "order-42"}
    first = headers_of(client, "/v1/queues/q/tasks", {"type": "t"}, {**key, "traceparent": PARENT})
    assert headers_of(client, "/v1/queues/q/tasks", {"type": "t"}, {**key, "traceparent": OWN}) == first
