"""The metrics of a gateway over HTTP, and its log lines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.api.gateway import GatewaySettings
from holdfast.observe.logs import JsonLines, of_request
from tests.api.setting import Client, RunningServer, sqlite_server

CANARY = "canary-7f3a"
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with sqlite_server(tmp_path, GatewaySettings(upkeep=False)) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    client = Client(server.port)
    yield client
    client.close()


def test_a_gateway_counts_what_goes_through_it(client: Client) -> None:
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
        "holdfast_upkeep_partitions 0.0",
    ):
        assert line in lines
    assert CANARY not in answer.body.decode()
    assert good["task_id"] not in answer.body.decode()


def test_log_lines_made_for_a_request_have_its_task_and_its_trace(server: RunningServer, client: Client) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonLines())
    handler.addFilter(of_request)
    logger = logging.getLogger("holdfast.api")
    logger.addHandler(handler)

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError(CANARY)

    server.gateway.store.get = broken  # type: ignore[assignment, method-assign]
    try:
        task_id = "0" * 32
        client.send("GET", f"/v1/tasks/{task_id}", headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
    finally:
        logger.removeHandler(handler)
    (line,) = [json.loads(line) for line in written.getvalue().splitlines()]
    assert (line["task_id"], line["trace_id"], line["level"]) == (task_id, TRACE, "error")
    assert CANARY not in written.getvalue()
