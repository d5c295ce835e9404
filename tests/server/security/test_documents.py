"""Documents by kind, and who may read and write them: this table, and not the code, is what was decided."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.core.partitions import PartitionMap
from holdfast.stores import documents
from tests.server.security.gate import Gate, open_gate
from tests.server.setting import Client

#: The tokens that there are, by the letters of the table; `W` works in all queues.
TOKENS = {"e": "enqueue:own", "w": "work:own", "W": "work:*", "r": "read", "m": "manage", "a": "admin"}
SCHEDULE = {"name": "s", "timing": {"every_ms": 60_000}, "call": {"type": "report", "queue": "own"}}
#: By kind: a name, a value, who may read it, who may list all of the kind, and who may write it.
KINDS: dict[str, tuple[str, object, str, str, str]] = {
    "schedule": ("s", SCHEDULE, "rma", "rma", "ma"),
    "queue": ("own", {"paused": True}, "rma", "rma", "ma"),
    "orders": ("worker-1", {"concurrency": 3}, "ma", "ma", "ma"),
    "memo": ("charge-1", 1, "Wa", "a", "a"),
    "map": ("", {}, "ewWrma", "ewWrma", "a"),
    "token": ("0" * 12, {}, "a", "a", "a"),
    "type": ("report", {"name": "report", "queue": "own"}, "ewWrma", "rma", "Wa"),
    "note": ("n-1", {}, "a", "a", "a"),
}


class Clients:
    """One client for each token of the table."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.by_letter = {letter: gate.client(scope) for letter, scope in TOKENS.items()}

    def allowed(self, path: str, body: dict[str, Any]) -> str:
        """The letters of those who are not refused."""
        statuses = {letter: client.send("POST", path, body).status for letter, client in self.by_letter.items()}
        assert all(status in {200, 403, 409, 422} for status in statuses.values()), statuses
        return "".join(letter for letter, status in statuses.items() if status != 403)


@pytest.fixture
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    with open_gate(tmp_path_factory.mktemp("gate")) as gate:
        yield Clients(gate)


def _value(value: object) -> str:
    return b64encode(json.dumps(value).encode()).decode()


def _held(client: Client, queue: str) -> dict[str, str]:
    client.enqueue(queue)
    (task,) = client.reserve(queue)
    return {"task_id": task["task_id"], "token": task["token"]}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_for_those_of_the_table(kind: str, clients: Clients) -> None:
    name, value, read, listed, written = KINDS[kind]
    assert clients.allowed("/v1/store/documents", {"kind": kind, "names": [name]}) == read
    assert clients.allowed("/v1/store/documents", {"kind": kind}) == listed
    # Refused by its version, and so harmless, wherever the token would let it pass.
    write = {"kind": kind, "name": name, "value": _value(value), "expected": 17}
    assert clients.allowed("/v1/store/put", write) == written
    assert clients.allowed("/v1/store/put", {**write, "value": None}) == written


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "map"])
def test_guards_and_tasks_of_a_leader_are_for_admins(kind: str, clients: Clients) -> None:
    name, value, *_ = KINDS[kind]
    write = {"kind": kind, "name": name, "value": _value(value), "expected": 17}
    assert clients.allowed("/v1/store/put", {**write, "epoch": 1}) == "a"
    task = {"task_id": "0" * 32, "type": "t", "queue": "own", "payload": "e30="}
    assert clients.allowed("/v1/store/put", {**write, "tasks": [task]}) == ("ma" if kind == "schedule" else "a")


def test_a_published_type_is_shown_to_those_of_its_queue(clients: Clients) -> None:
    worker = clients.by_letter["W"]
    for name, queue in (("report", "own"), ("charge", "other")):
        value = _value({"name": name, "queue": queue})
        assert worker.post("/v1/store/put", {"kind": "type", "name": name, "value": value})["applied"] is True
    both = ["charge", "report"]
    for letter, seen in (("e", ["report"]), ("w", ["report"]), ("W", both), ("r", both)):
        page = clients.by_letter[letter].post("/v1/store/documents", {"kind": "type", "names": ["charge", "report"]})
        assert [document["name"] for document in page["documents"]] == seen, letter
    for wrong in ({"name": "other", "queue": "own"}, {"name": "report", "queue": "a b"}, {"name": "report"}):
        write = {"kind": "type", "name": "report", "value": _value(wrong)}
        assert worker.send("POST", "/v1/store/put", write).status == 422, wrong


def test_a_worker_stores_a_memo_by_its_claim_and_replaces_none(clients: Clients) -> None:
    worker, admin = clients.by_letter["W"], clients.by_letter["a"]
    hold = _held(admin, "own")
    memo = {"kind": "memo", "name": "charge-1", "value": _value(1), "expected": 0, "ttl_ms": 60_000, "hold": hold}
    assert worker.post("/v1/store/put", memo)["applied"] is True
    for change in ({"hold": None}, {"expected": None}, {"expected": 1}, {"value": None}, {"ttl_ms": None}):
        assert worker.send("POST", "/v1/store/put", {**memo, **change}).status == 403, change
    lost = {**memo, "name": "charge-2", "hold": {**hold, "token": "1.1.feed"}}
    answer = worker.post("/v1/store/put", lost)
    assert (answer["applied"], answer["reason"], answer["document"]) == (False, "stale_claim", None)
    second = worker.post("/v1/store/put", {**memo, "value": _value(2)})
    assert (second["applied"], b64decode(second["document"]["value"])) == (False, b"1")


def test_a_refused_write_shows_no_secret_of_what_is_there(clients: Clients) -> None:
    """A reader may not write; of what a writer of another version is told, nothing is hidden from a manager."""
    manager, admin = clients.by_letter["m"], clients.by_letter["a"]
    call = {**SCHEDULE["call"], "payload": _value({"password": "sesame"})}  # type: ignore[dict-item]
    admin.post(
        "/v1/store/put", {"kind": "schedule", "name": "s", "value": _value({**SCHEDULE, "call": call}), "expected": 0}
    )
    write = {"kind": "schedule", "name": "s", "value": _value(SCHEDULE), "expected": 7}
    answer = manager.post("/v1/store/put", write)
    assert (answer["applied"], answer["reason"]) == (False, "version")
    page = clients.by_letter["r"].post("/v1/store/documents", {"kind": "schedule"})
    shown = json.loads(b64decode(page["documents"][0]["value"]))
    assert json.loads(b64decode(shown["call"]["payload"])) == {"password": "***"}


def test_a_schedule_is_due_when_it_says_so_itself(clients: Clients) -> None:
    manager = clients.by_letter["m"]
    value = _value({**SCHEDULE, "next_at_ms": 5_000_000_000_000})
    write = {"kind": "schedule", "name": "s", "value": value, "expected": 0, "due_at_ms": 1, "ttl_ms": 1}
    document = manager.post("/v1/store/put", write)["document"]
    assert (document["due_at_ms"], document["expires_at_ms"]) == (5_000_000_000_000, None)


def test_the_addresses_in_the_map_are_for_those_who_may_read(clients: Clients) -> None:
    new = PartitionMap(version=1, shards=("redis://db.internal/0",))
    assert clients.gate.run(lambda store: documents.put_partition_map(store, new)) == new
    for letter, client in clients.by_letter.items():
        page = client.post("/v1/store/documents", {"kind": "map", "names": [""]})
        value = b64decode(page["documents"][0]["value"])
        assert (b"db.internal" in value) is (letter in "rma"), letter
