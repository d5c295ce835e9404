"""Tasks of queues that are not the caller's: nothing is done to them, and nobody is told that they are there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.task import State, Task
from holdfast.errors import StoreUnavailable
from holdfast.stores.contract import Document
from holdfast.stores.decorate import PassingStore
from holdfast.stores.documents import Discard, discard_of
from tests.server.security.gate import Gate
from tests.server.setting import Answer, Client

UNKNOWN = "f" * 32
ERROR = {"type": "ValueError", "message": "no"}


@pytest.fixture
def worker(gate: Gate) -> Client:
    return gate.client("work:own*")


@pytest.fixture
def producer(gate: Gate) -> Client:
    return gate.client("enqueue:own")


@pytest.fixture
def admin(gate: Gate) -> Client:
    return gate.client("admin")


@pytest.fixture
def foreign(admin: Client) -> dict[str, Any]:
    """A claimed task of a queue that neither of the others may touch, with the token of its claim."""
    admin.enqueue("foreign", arguments={"a": 1})
    (task,) = admin.reserve("foreign", claim_id="claim-of-another")
    return task


def _state(gate: Gate, task_id: str) -> tuple[State, int | None]:
    (task,) = gate.run(lambda store: store.get([task_id]))
    assert task is not None
    return task.state, task.lease_expires_at_ms


def _without_id(answer: Answer, task_id: str) -> str:
    return answer.body.decode().replace(task_id, "ID")


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        ("ack", {"result": 1}),
        ("fail", {"error": ERROR}),
        ("snooze", {"delay": "1s"}),
        ("release", {}),
        ("extend", {"lease": "1h"}),
    ],
)
def test_even_with_the_token_of_its_claim_a_foreign_task_is_unknown(
    verb: str, more: dict[str, Any], gate: Gate, worker: Client, foreign: dict[str, Any]
) -> None:
    before = _state(gate, foreign["task_id"])
    body = {"token": foreign["token"], **more}
    answer = worker.send("POST", f"/v1/tasks/{foreign['task_id']}/{verb}", body)
    nothing = worker.send("POST", f"/v1/tasks/{UNKNOWN}/{verb}", body)
    assert answer.status == nothing.status == 404
    assert _without_id(answer, foreign["task_id"]) == _without_id(nothing, UNKNOWN)
    assert _state(gate, foreign["task_id"]) == before


@pytest.mark.parametrize("what", ["", "/why", "/history"])
def test_a_foreign_task_cannot_be_looked_at(
    what: str, worker: Client, producer: Client, foreign: dict[str, Any]
) -> None:
    for client in (worker, producer):
        answer = client.send("GET", f"/v1/tasks/{foreign['task_id']}{what}")
        nothing = client.send("GET", f"/v1/tasks/{UNKNOWN}{what}")
        assert answer.status == nothing.status == 404
        assert _without_id(answer, foreign["task_id"]) == _without_id(nothing, UNKNOWN)


def test_a_foreign_task_cannot_be_cancelled(gate: Gate, admin: Client, producer: Client, worker: Client) -> None:
    task_id = admin.enqueue("foreign")
    assert producer.send("POST", f"/v1/tasks/{task_id}/cancel", {}).status == 404
    assert worker.send("POST", f"/v1/tasks/{task_id}/cancel", {}).status == 403
    answer = producer.post("/v1/settle", {"changes": [{"event": "cancel", "task_id": task_id}]})
    assert answer["changes"][0]["reason"] == "unknown"
    assert _state(gate, task_id)[0] is State.READY
    own = producer.enqueue("own")
    assert producer.post(f"/v1/tasks/{own}/cancel", {})["state"] == "cancelled"


def test_a_batch_settles_the_own_ones_only(gate: Gate, admin: Client, worker: Client, foreign: dict[str, Any]) -> None:
    admin.enqueue("own-2")
    (own,) = worker.reserve("own-2")
    changes = [
        {"event": "ack", "task_id": foreign["task_id"], "token": foreign["token"]},
        {"event": "ack", "task_id": own["task_id"], "token": own["token"]},
        {"event": "ack", "task_id": UNKNOWN, "token": own["token"]},
    ]
    answer = worker.post("/v1/settle", {"changes": changes})
    assert [line["applied"] for line in answer["changes"]] == [False, True, False]
    assert [line["reason"] for line in answer["changes"]] == ["unknown", "", "unknown"]
    assert _state(gate, foreign["task_id"])[0] is State.CLAIMED
    extended = worker.post("/v1/extend", {"holds": [{"task_id": foreign["task_id"], "token": foreign["token"]}]})
    assert (extended["holds"][0]["held"], extended["holds"][0]["reason"]) == (False, "unknown")


def test_settlements_with_a_reserve_are_no_way_around(gate: Gate, worker: Client, foreign: dict[str, Any]) -> None:
    change = {"event": "ack", "task_id": foreign["task_id"], "token": foreign["token"]}
    body = {"worker_id": "w", "queues": ["own"], "settle": [change]}
    assert worker.post("/v1/reserve", body)["settled"][0]["reason"] == "unknown"
    assert _state(gate, foreign["task_id"])[0] is State.CLAIMED


def test_the_claim_of_another_worker_gives_nothing(worker: Client, foreign: dict[str, Any]) -> None:
    """A claim_id is repeated to get its tasks again, whatever queues are asked for."""
    assert worker.reserve("own", claim_id="claim-of-another") == []
    body = {
        "request": {
            "claim_id": "claim-of-another",
            "worker_id": "w",
            "shares": [["own", 1]],
            "max_tasks": 1,
            "lease_ms": 30_000,
        }
    }
    answer = worker.send("POST", "/v1/store/reserve", body)
    assert (answer.status, answer.json["tasks"]) == (200, [])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/reserve", {"worker_id": "w", "queues": ["own", "foreign"]}),
        ("/v1/workers/w/announce", {"queues": ["own", "foreign"], "types": []}),
        ("/v1/store/wait", {"wakeups": ["own", "foreign"], "timeout_ms": 1}),
        ("/v1/store/wait", {"wakeups": ["*maintenance"], "timeout_ms": 1}),
    ],
)
def test_work_of_a_foreign_queue_is_refused(path: str, body: dict[str, Any], worker: Client) -> None:
    assert worker.send("POST", path, body).status == 403


def test_a_batch_with_a_foreign_queue_records_nothing(gate: Gate, producer: Client) -> None:
    tasks = [{"type": "add", "queue": "own"}, {"type": "add", "queue": "foreign"}]
    assert producer.send("POST", "/v1/tasks", {"tasks": tasks}).status == 403
    assert gate.run(lambda store: store.counts()) == []
    assert producer.send("POST", "/v1/queues/foreign/tasks", {"type": "add"}).status == 403


# -- the same through the contract -------------------------------------------------------------------------------


def test_the_contract_knows_no_foreign_task(
    gate: Gate, worker: Client, producer: Client, foreign: dict[str, Any]
) -> None:
    before = _state(gate, foreign["task_id"])
    change = {"event": "ack", "task_id": foreign["task_id"], "token": foreign["token"]}
    verdicts = worker.post("/v1/store/apply", {"changes": [change]})
    assert [verdict["reason"] for verdict in verdicts] == ["unknown"]
    hold = {"task_id": foreign["task_id"], "token": foreign["token"]}
    held = worker.post("/v1/store/extend", {"holds": [hold], "lease_ms": 3_600_000})
    assert [each["held"] for each in held] == [False]
    for client in (worker, producer):
        assert client.post("/v1/store/get", {"task_ids": [foreign["task_id"], UNKNOWN]}) == [None, None]
    assert _state(gate, foreign["task_id"]) == before


def test_changes_without_a_claim_are_for_those_who_manage(gate: Gate, admin: Client, worker: Client) -> None:
    task_id = admin.enqueue("own")
    for event in ("discard", "replay", "prioritize", "expire"):
        change = {"event": event, "task_id": task_id}
        assert worker.send("POST", "/v1/store/apply", {"changes": [change]}).status == 403
    manager = gate.client("manage")
    late = {"event": "expire", "task_id": task_id, "epoch": 0}
    assert manager.send("POST", "/v1/store/apply", {"changes": [late]}).status == 403


def test_keys_of_steps_are_for_those_who_work_everywhere(gate: Gate, worker: Client, foreign: dict[str, Any]) -> None:
    """They are one for all queues: a worker of one queue could give those of another its own results."""
    hold = {"task_id": foreign["task_id"], "token": foreign["token"]}
    keep = {"kind": "memo", "name": "charge-1", "value": "MQ==", "expected": 0, "ttl_ms": 60_000, "hold": hold}
    everywhere = gate.client("work:*")
    for client, status in ((worker, 403), (everywhere, 200)):
        assert client.send("POST", "/v1/store/put", keep).status == status
        read = {"kind": "memo", "names": ["charge-1"]}
        assert client.send("POST", "/v1/store/documents", read).status == status


def test_one_partition_is_for_admins(gate: Gate) -> None:
    for scope, status in (("work:*", 403), ("manage", 403), ("admin", 200)):
        client = gate.client(scope, "read")
        assert client.send("POST", "/v1/store/counts?partition=0", {}).status == status


def test_a_task_says_the_same_to_its_own_worker(gate: Gate, admin: Client, worker: Client) -> None:
    task_id = admin.enqueue("own", arguments={"password": "hunter2"})
    (task,) = worker.reserve("own")
    assert task["arguments"] == {"password": "hunter2"}
    assert worker.get(f"/v1/tasks/{task_id}")["arguments"] == {"password": "hunter2"}
    (found,) = worker.post("/v1/store/get", {"task_ids": [task_id]})
    assert msgspec.convert(found, Task).payload == b'{"password": "hunter2"}'


def test_what_is_counted_found_and_heard_of_elsewhere_is_not_told(
    admin: Client, producer: Client, worker: Client
) -> None:
    for queue in ("own", "foreign"):
        admin.enqueue(queue)
    admin.post("/v1/workers/both/announce", {"queues": ["own", "foreign"], "types": ["t"]})
    admin.post("/v1/workers/other/announce", {"queues": ["foreign"], "types": ["t"]})
    for client in (producer, worker):
        assert [row["queue"] for row in client.post("/v1/store/counts", {})] == ["own"]
        assert [row["queues"] for row in client.post("/v1/store/workers", {})] == [["own"]]
        assert [task["queue"] for task in client.post("/v1/store/find", {"query": {"queue": "own"}})["tasks"]] == [
            "own"
        ]
        for query in ({}, {"queue": "foreign"}):
            assert client.send("POST", "/v1/store/find", {"query": query}).status == 403


def test_the_reason_why_names_no_foreign_queue(admin: Client, producer: Client) -> None:
    task_id = producer.enqueue("own")
    admin.post("/v1/workers/other/announce", {"queues": ["foreign"], "types": ["t"]})
    assert "they serve foreign" in admin.get(f"/v1/tasks/{task_id}/why")["text"]
    assert producer.get(f"/v1/tasks/{task_id}/why")["text"] == "No worker is running for queue own."


@pytest.mark.parametrize("event", ["discard", "replay", "prioritize", "expire"])
def test_a_token_that_is_made_up_does_not_make_an_operator_of_a_worker(
    worker: Client, admin: Client, gate: Gate, event: str
) -> None:
    task_id = admin.enqueue("own", retry={"max_attempts": 1})
    if event in {"discard", "replay"}:
        (task,) = worker.reserve("own")
        worker.post(f"/v1/tasks/{task_id}/fail", {"token": task["token"], "error": ERROR})
    before = _state(gate, task_id)
    change = {"event": event, "task_id": task_id, "token": "made-up", "reason": "mine", "priority": 9}
    worker.post("/v1/store/apply", {"changes": [change]}, 403)
    assert _state(gate, task_id) == before


def test_a_worker_cancels_nothing_by_a_token_that_is_made_up(worker: Client, admin: Client, gate: Gate) -> None:
    task_id = admin.enqueue("own")
    change = {"event": "cancel", "task_id": task_id, "token": "made-up"}
    (verdict,) = worker.post("/v1/store/apply", {"changes": [change]})
    assert verdict["reason"] == "unknown"
    assert _state(gate, task_id)[0] is State.READY


def test_where_the_store_is_and_how_it_fails_is_for_those_who_may_read(gate: Gate, producer: Client) -> None:
    class Failing(PassingStore):
        async def get(self, task_ids: object) -> list[Task | None]:
            raise StoreUnavailable("postgresql://ada:***@db.internal/tasks: no answer")

    reader = gate.client("read")
    gate.server.service.store = Failing(gate.store)
    for client, tells_more in ((producer, False), (reader, True)):
        answer = client.send("GET", f"/v1/tasks/{UNKNOWN}")
        assert (answer.status, b"db.internal" in answer.body) == (503, tells_more)


def test_the_reason_of_a_discard_is_shown_without_secrets(gate: Gate, admin: Client) -> None:
    task_id = admin.dead_letter()
    admin.post("/v1/settle", {"changes": [{"event": "discard", "task_id": task_id, "reason": "password=sesame"}]})
    reader = gate.client("read")
    assert "sesame" not in _discard(reader).reason
    assert "sesame" in _discard(gate.client("manage")).reason


def _discard(client: Client) -> Discard:
    (document,) = client.post("/v1/store/documents", {"kind": "discard"})["documents"]
    return discard_of(msgspec.convert(document, Document))


def test_a_task_id_of_a_foreign_task_tells_nothing_of_it(gate: Gate, admin: Client, producer: Client) -> None:
    """Whoever guesses its arguments is told the same as whoever does not."""
    task_id = admin.enqueue("foreign", arguments={"pin": 1234})
    guesses: list[dict[str, Any]] = [
        {"type": "add", "arguments": {"pin": 1234}},
        {"type": "add", "arguments": {"pin": 1}},
        {"type": "other"},
    ]
    for path, more in (("/v1/queues/own/tasks", {}), ("/v1/tasks", {"queue": "own"})):
        told = set()
        for guess in guesses:
            task = {**guess, "task_id": task_id, **more}
            answer = producer.send("POST", path, task if path.endswith("own/tasks") else {"tasks": [task]})
            told.add((answer.status, answer.body))
        assert len(told) == 1, told
    payload = {"task_id": task_id, "type": "add", "queue": "own", "payload": "e30="}
    (conflict,) = producer.post("/v1/store/enqueue", {"tasks": [payload]})
    assert conflict["conflict"] == "the id already stands for another task"
