"""The store contract over HTTP: what strangers may not send, and what the kit does not ask."""

from __future__ import annotations

import base64
import inspect
import json
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.payload import MAX_BYTES
from holdfast.server.app import ROUTES
from holdfast.server.server import ServerSettings
from holdfast.stores.contract import Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from tests.server.setting import Client, RunningServer, running_server
from tests.support import eventually

TASK = {"task_id": "01a1e06867e200000000abaa190ecb5f", "type": "add", "queue": "q", "payload": "e30="}
RESERVE = {"claim_id": "c", "worker_id": "w", "shares": [["q", 1]], "max_tasks": 1, "lease_ms": 1_000}
SCHEDULE = {"name": "s", "timing": {"every_ms": 60_000}, "call": {"type": "report"}}
#: Answered by a client of its own accord.
_NOT_CALLED = {"placement", "close"}


def _json(value: object) -> str:
    """The value of a document, as it travels."""
    return b64encode(json.dumps(value).encode()).decode()


def test_every_method_of_the_contract_has_a_route() -> None:
    methods = {name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")}
    served = {route.path.rpartition("/")[2] for route in ROUTES if route.path.startswith("/v1/store/")}
    assert served == methods - _NOT_CALLED


@pytest.mark.parametrize(
    ("method", "body", "words"),
    [
        ("enqueue", {"tasks": [{**TASK, "queue": "*maintenance"}]}, "queue name"),
        ("enqueue", {"tasks": [{**TASK, "type": "a b"}]}, "task type name"),
        ("enqueue", {"tasks": [{**TASK, "priority": 1_000}]}, "priority"),
        ("enqueue", {"tasks": [{**TASK, "request_id": "a b"}]}, "request_id"),
        ("enqueue", {"tasks": [{**TASK, "delay_ms": -1}]}, "delay_ms"),
        ("enqueue", {"tasks": [{**TASK, "run_at_ms": 10**18}]}, "run_at_ms"),
        ("enqueue", {"tasks": [{**TASK, "policy": {"max_attempts": 10**6}}]}, "max_attempts"),
        ("enqueue", {"tasks": [{**TASK, "policy": {"jitter": 2.0}}]}, "jitter"),
        ("enqueue", {"tasks": [{**TASK, "headers": {"x": "y" * 17_000}}]}, "headers"),
        ("enqueue", {"tasks": [TASK] * 1_001}, "1,000 are the most"),
        ("reserve", {"request": {**RESERVE, "max_tasks": 1_001}}, "max_tasks"),
        ("reserve", {"request": {**RESERVE, "claim_id": ""}}, "claim_id"),
        ("reserve", {"request": {**RESERVE, "worker_id": "a\nb"}}, "worker_id"),
        ("reserve", {"request": {**RESERVE, "shares": [["q", 1]] * 65}}, "queues"),
        ("reserve", {"request": {**RESERVE, "lease_ms": 86_400_001}}, "lease_ms"),
        ("extend", {"holds": [], "lease_ms": 86_400_001}, "lease_ms"),
        ("extend", {"holds": [], "lease_ms": -1}, "lease_ms"),
        ("lead", {"name": "maintenance", "owner": "a\0b", "ttl_ms": 1}, "owner"),
        ("apply", {"changes": [{"event": "reserve", "task_id": "0" * 32}]}, "reserve"),
        ("apply", {"changes": [{"event": "promote", "task_id": "0" * 32, "token": "x"}]}, "promote"),
        ("wait", {"wakeups": ["*other"], "timeout_ms": 10}, "queue name"),
        ("put", {"kind": "memo", "name": "a b", "value": "AA==", "ttl_ms": 1}, "key"),
        ("put", {"kind": "memo", "name": "k", "value": "AA==", "ttl_ms": -1}, "ttl_ms"),
        ("put", {"kind": "a b", "name": "k", "value": "AA=="}, "document name"),
        ("put", {"kind": "token", "name": "a b", "value": "AA=="}, "document name"),
        ("put", {"kind": "token", "name": "k", "value": "AA==", "expected": -1}, "expected"),
        ("put", {"kind": "queue", "name": "q", "value": _json({"step_ms": 0})}, "step_ms"),
        ("put", {"kind": "queue", "name": "q", "value": "AA=="}, "value"),
        ("put", {"kind": "orders", "name": "w", "value": _json({"concurrency": 10**6})}, "concurrency"),
        ("put", {"kind": "map", "name": "other", "value": _json({})}, "map"),
        ("put", {"kind": "map", "name": "", "value": None}, "map"),
        ("put", {"kind": "map", "name": "", "value": _json({"version": 10**30})}, "version"),
        ("put", {"kind": "schedule", "name": "s", "value": _json(SCHEDULE), "colour": "red"}, "colour"),
        ("put", {"kind": "schedule", "name": "other", "value": _json(SCHEDULE)}, "schedule name"),
        ("put", {"kind": "schedule", "name": "s", "value": _json({**SCHEDULE, "call": {"type": "a b"}})}, "type name"),
        ("documents", {"kind": "memo", "names": ["k"] * 1_001}, "1,000 are the most"),
        ("documents", {"kind": "memo", "limit": 1_001}, "limit"),
        ("documents", {"kind": "memo", "cursor": "x" * 20_000}, "cursor"),
        ("promote", {"epoch": 10**30}, "epoch"),
        ("promote", {"epoch": 1, "limit": 10**9}, "limit"),
        ("prune", {"epoch": 1, "retention": {"keep": 10**30}}, "keep"),
        ("announce", {"worker": {}, "ttl_ms": 1}, "worker_id"),
        ("put", {"kind": "schedule", "name": "a b", "value": None, "expected": 0}, "schedule name"),
        ("counts", {"colour": "red"}, "colour"),
        ("get", {"task_ids": ["0" * 32] * 1_001}, "1,000 are the most"),
    ],
)
def test_what_no_client_of_ours_would_send_is_refused(
    client: Client, method: str, body: dict[str, Any], words: str
) -> None:
    assert words in client.post(f"/v1/store/{method}", body, 422)["detail"]
    assert client.post("/v1/store/counts") == []


def test_ids_that_cannot_be_are_unknown_one_by_one(client: Client) -> None:
    claim = client.claim()
    ids = ["x", claim["task_id"], "", "0" * 32]
    found = client.post("/v1/store/get", {"task_ids": ids})
    assert [task and task["task_id"] for task in found] == [None, claim["task_id"], None, None]
    acks = [{"event": "ack", "task_id": task_id, "token": claim["token"]} for task_id in ids]
    holds = [[task_id, claim["token"]] for task_id in ids]
    assert holds
    extended = client.post(
        "/v1/store/extend",
        {"holds": [{"task_id": task_id, "token": claim["token"]} for task_id in ids], "lease_ms": 60_000},
    )
    assert [each["held"] for each in extended] == [False, True, False, False]
    verdicts = client.post("/v1/store/apply", {"changes": acks})
    assert [(each["applied"], each["reason"]) for each in verdicts] == [
        (False, "unknown"),
        (True, ""),
        (False, "unknown"),
        (False, "unknown"),
    ]


def test_a_partition_is_asked_by_its_number(client: Client) -> None:
    assert len(client.post("/v1/store/partitions")) == 1
    assert client.post("/v1/store/counts?partition=0") == []
    assert client.post("/v1/store/counts?partition=1", {}, 404)["type"].endswith("not-found")
    assert client.post("/v1/store/counts?partition=x", {}, 422)["type"].endswith("bad-option")


def test_the_map_of_one_caller_is_not_that_of_the_others(tmp_path: Path) -> None:
    """Through any number of wrapped stores: the version is that of the call, and is gone after it."""

    def make() -> Store:
        return PassingStore(PassingStore(open_store(f"sqlite:///{tmp_path}/tasks.db")))

    with running_server(make, settings=ServerSettings(maintenance=False)) as server:
        client = Client(server.port)
        new = {"version": 1, "shards": [""], "base": 1, "spread": {"hot": 1}, "widest": {"hot": 1}}
        client.post("/v1/store/put", {"kind": "map", "name": "", "value": _json(new), "expected": 0})
        assert client.post("/v1/store/enqueue", {"tasks": [TASK]}, 409)["type"].endswith("stale-map")
        assert client.post("/v1/store/enqueue", {"tasks": [TASK], "map_version": 1})[0]["created"] is True
        assert client.post("/v1/store/enqueue", {"tasks": [TASK]}, 409)["type"].endswith("stale-map")
        client.close()


def test_a_wait_is_one_of_all_waits(server: RunningServer, client: Client) -> None:
    waiter = Client(server.port)
    with ThreadPoolExecutor(1) as threads:
        rung = threads.submit(waiter.post, "/v1/store/wait", {"wakeups": ["q"], "timeout_ms": 20_000})
        eventually(lambda: server.service.waiters.waiting == 1)
        client.enqueue("q")
        assert rung.result() is True
    waiter.close()


@pytest.mark.parametrize(("length", "status"), [(MAX_BYTES, 200), (MAX_BYTES + 1, 413)])
def test_a_result_is_as_large_as_arguments_at_most(client: Client, length: int, status: int) -> None:
    claim = client.claim()
    result = base64.b64encode(b'"%b"' % (b"x" * (length - 2))).decode()
    change = {"event": "ack", "task_id": claim["task_id"], "token": claim["token"], "result": result}
    client.post("/v1/store/apply", {"changes": [change]}, status)
    (task,) = client.post("/v1/store/get", {"task_ids": [claim["task_id"]]})
    assert task["state"] == ("succeeded" if status == 200 else "claimed")
