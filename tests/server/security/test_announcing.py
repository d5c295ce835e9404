"""Workers that announce themselves: none in the name of a foreign one, and no more than the list has room for."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.server import server as server_module
from holdfast.stores import documents
from holdfast.stores.contract import WorkerOrders, WorkerRecord
from tests.server.security.gate import Gate
from tests.server.setting import Client
from tests.support import eventually

_OWN = {"queues": ["own"], "types": ["t"]}


def _workers(gate: Gate) -> dict[str, WorkerRecord]:
    return {worker.worker_id: worker for worker in gate.run(lambda store: store.workers())}


@pytest.fixture
def foreign(gate: Gate) -> str:
    """A worker of another queue, for which an operator has left orders."""
    other = gate.client("work:foreign")
    other.post("/v1/workers/box/announce", {"queues": ["foreign"], "types": ["t"]})
    gate.run(lambda store: documents.order(store, "box", WorkerOrders(concurrency=3)))
    return "box"


@pytest.mark.parametrize("ttl", [60, 0])
def test_the_worker_of_another_queue_is_neither_replaced_nor_removed(gate: Gate, foreign: str, ttl: int) -> None:
    stranger = gate.client("work:own")
    for _ in range(2):
        stranger.post(f"/v1/workers/{foreign}/announce", {**_OWN, "ttl": ttl}, 403)
    record = {"worker_id": foreign, "host": "h", "pid": 1, "version": "1", "processes": 1, "concurrency": 1}
    worker = {**record, "running": 0, **_OWN}
    stranger.post("/v1/store/announce", {"worker": worker, "ttl_ms": 1_000 * ttl}, 403)
    assert _workers(gate)[foreign].queues == ("foreign",)
    again = gate.client("work:foreign").post("/v1/workers/box/announce", {"queues": ["foreign"], "types": ["t"]})
    assert again["concurrency"] == 3


def test_the_id_of_a_worker_that_is_no_longer_heard_of_is_free(gate: Gate, foreign: str) -> None:
    gate.client("work:foreign").post(
        f"/v1/workers/{foreign}/announce", {"queues": ["foreign"], "types": [], "ttl": "1ms"}
    )
    eventually(lambda: not _workers(gate)[foreign].alive)
    gate.client("work:own").post(f"/v1/workers/{foreign}/announce", _OWN)
    assert _workers(gate)[foreign].queues == ("own",)


def test_a_worker_that_announced_itself_at_the_store_is_not_replaced_either(gate: Gate) -> None:
    record = WorkerRecord(
        worker_id="box",
        host="h",
        pid=1,
        version="1",
        queues=("foreign", "own"),
        types=("t",),
        processes=1,
        concurrency=1,
        running=0,
    )
    gate.run(lambda store: store.announce(record, 60_000))
    gate.client("work:own").post("/v1/workers/box/announce", _OWN, 403)
    gate.client("work:*").post("/v1/workers/box/announce", _OWN)


def test_a_worker_serves_a_queue_at_least(gate: Gate) -> None:
    client = gate.client("work:own")
    client.post("/v1/workers/w/announce", {"queues": [], "types": ["t"]}, 422)
    record: dict[str, Any] = {"worker_id": "w", "host": "h", "pid": 1, "version": "1", "queues": [], "types": []}
    worker = {**record, "processes": 1, "concurrency": 1, "running": 0}
    client.post("/v1/store/announce", {"worker": worker, "ttl_ms": 1_000}, 422)
    assert not _workers(gate)


def test_a_token_has_so_many_workers_and_silent_ones_make_room(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_WORKERS", 3)
    client, other = gate.client("work:own"), gate.client("work:own")
    for name in ("a", "b", "c"):
        client.post(f"/v1/workers/{name}/announce", _OWN)
    refused = client.send("POST", "/v1/workers/d/announce", _OWN)
    assert (refused.status, refused.json["type"]) == (429, "urn:holdfast:problem:too-many-requests")
    other.post("/v1/workers/e/announce", _OWN)  # another token has its own
    client.post("/v1/workers/b/announce", {**_OWN, "ttl": "1ms"})
    client.post("/v1/workers/d/announce", _OWN)
    assert set(_workers(gate)) == {"a", "c", "d", "e"}
    client.post("/v1/workers/a/announce", {**_OWN, "ttl": 0})
    client.post("/v1/workers/f/announce", _OWN)
    assert set(_workers(gate)) == {"c", "d", "e", "f"}


def test_the_types_of_a_tokens_workers_have_a_limit_together(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_TYPES_BYTES", 1_000)
    client = gate.client("work:own")
    many = {"queues": ["own"], "types": [f"{number:0100}" for number in range(6)]}
    client.post("/v1/workers/a/announce", many)
    client.post("/v1/workers/b/announce", many, 429)
    client.post("/v1/workers/a/announce", many)  # not twice


def test_the_list_of_workers_has_no_types(gate: Gate) -> None:
    gate.client("work:own").post("/v1/workers/w/announce", _OWN)
    reader: Client = gate.client("read")
    (listed,) = reader.get("/v1/workers")["workers"]
    assert listed["types"] == []
    assert reader.get("/v1/workers/w")["types"] == ["t"]
