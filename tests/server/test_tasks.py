"""Recording tasks over HTTP, and looking at them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.retry import RunPolicy
from holdfast.core.task import NewTask, Task
from holdfast.server.server import ServerSettings
from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from tests.remote.calling import with_store
from tests.server.setting import Client, running_server, sqlite_server

NO_TASK = "0" * 32


def test_a_task_is_recorded_and_shown_as_it_was_sent(client: Client) -> None:
    body = b'{"type": "resize", "arguments": { "url":"cat.jpg",\n "width": 1.50, "n": "zo\xc3\xab" }, "priority": 3}'
    task_id = client.post("/v1/queues/images/tasks", body, 201)["task_id"]
    raw = client.send("GET", f"/v1/tasks/{task_id}")
    assert b'"arguments":{ "url":"cat.jpg",\n "width": 1.50, "n": "zo\xc3\xab" }' in raw.body
    assert (raw.json["queue"], raw.json["type"], raw.json["priority"]) == ("images", "resize", 3)
    assert (raw.json["state"], raw.json["history"]) == ("ready", [])


def test_options_become_those_of_the_task(client: Client) -> None:
    task_id = client.enqueue(
        delay="1h",
        headers={"trace": "1"},
        retry={"max_attempts": 2, "base": 1, "give_up_on": ["ValueError"]},
        timeout="5m",
        expires="2h",
    )
    task = client.get(f"/v1/tasks/{task_id}")
    assert task["state"] == "scheduled"
    assert task["headers"] == {"trace": "1"}
    policy = task["policy"]
    assert (policy["max_attempts"], policy["base_ms"], policy["give_up_on"]) == (2, 1_000, ["builtins.ValueError"])
    assert (policy["timeout_ms"], policy["hard_timeout_ms"], policy["expires_ms"]) == (300_000, 330_000, 7_200_000)
    later = client.enqueue(run_at="2100-01-31T09:00:00+01:00")
    assert client.get(f"/v1/tasks/{later}")["run_at_ms"] == 4_105_065_600_000


def test_the_same_request_id_gives_the_same_task(client: Client) -> None:
    task_id = client.enqueue(request_id="order-42", arguments={"n": 1})
    again = client.post("/v1/queues/default/tasks", {"type": "add", "request_id": "order-42", "arguments": {"n": 1}})
    assert again == {"task_id": task_id, "created": False}
    other = {"type": "add", "request_id": "order-42", "arguments": {"n": 2}}
    problem = client.post("/v1/queues/default/tasks", other, 409)
    assert problem["type"].endswith("request-conflict")
    assert task_id in problem["detail"]


def test_a_task_id_of_the_client_is_kept(client: Client) -> None:
    task_id = "01a1e06867e200000000abaa190ecb5f"
    assert client.enqueue(task_id=task_id) == task_id
    assert client.post("/v1/queues/default/tasks", {"type": "add", "task_id": task_id})["created"] is False


def test_an_idempotency_key_makes_a_repeat_harmless(client: Client) -> None:
    key = {"Idempotency-Key": "k-1"}
    first = client.post("/v1/queues/default/tasks", {"type": "add"}, 201, key)
    assert client.post("/v1/queues/default/tasks", {"type": "add"}, 200, key)["task_id"] == first["task_id"]
    assert client.post("/v1/queues/default/tasks", {"type": "other"}, 409, key)["status"] == 409
    batch = {"tasks": [{"type": "add"}, {"type": "add"}]}
    made = client.post("/v1/tasks", batch, headers={"Idempotency-Key": "k-2" * 60})["tasks"]
    again = client.post("/v1/tasks", batch, headers={"Idempotency-Key": "k-2" * 60})["tasks"]
    assert len({task["task_id"] for task in made}) == 2
    assert again == [{**task, "created": False} for task in made]


def test_a_batch_is_recorded_in_order_over_any_queues(client: Client) -> None:
    client.enqueue("b", request_id="taken")
    tasks = [{"type": "one", "queue": "a"}, {"type": "two", "queue": "b", "request_id": "taken"}, {"type": "three"}]
    first, conflict, third = client.post("/v1/tasks", {"tasks": tasks})["tasks"]
    assert (first["created"], conflict["created"], third["created"]) == (True, False, True)
    assert "taken" in conflict["conflict"]
    assert client.get(f"/v1/tasks/{first['task_id']}")["queue"] == "a"
    assert client.get(f"/v1/tasks/{third['task_id']}")["queue"] == "default"
    here = client.post("/v1/queues/c/tasks", {"tasks": [{"type": "x"}, {"type": "y", "queue": "c"}]})["tasks"]
    assert [client.get(f"/v1/tasks/{task['task_id']}")["queue"] for task in here] == ["c", "c"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"type": "add", "colour": "red"}, "unknown field `colour`"),
        ({"arguments": {}}, "missing required field `type`"),
        ({"type": "a b"}, "$.type"),
        ({"type": "add", "arguments": [1]}, "write an object"),
        ({"type": "add", "priority": 101}, "<= 100"),
        ({"type": "add", "delay": "soon"}, "not a duration"),
        ({"type": "add", "delay": -1}, ">= 0"),
        ({"type": "add", "delay": "1s", "run_at": "2030-01-01T00:00:00Z"}, "exclude each other"),
        ({"type": "add", "run_at": "2030-01-01T00:00:00"}, "timezone"),
        ({"type": "add", "queue": "other"}, "not the queue of this address"),
        ({"type": "add", "task_id": "1"}, "$.task_id"),
        ({"type": "add", "request_id": "a b"}, "$.request_id"),
        ({"type": "add", "headers": {"a": "x" * 9_000}}, "headers"),
        ({"type": "add", "retry": {"max_attempts": 0}}, ">= 1"),
        ({"type": "add", "timeout": "5m", "hard_timeout": "1m"}, "hard_timeout"),
        ({"tasks": [{"type": "add"}], "type": "add"}, "unknown field `type`"),
        ({"tasks": [{"type": "add"}] * 1_001}, "length <= 1000"),
    ],
)
def test_a_wrong_task_is_refused_in_one_line(client: Client, body: dict[str, Any], words: str) -> None:
    problem = client.post("/v1/queues/default/tasks", body, 422)
    assert words in problem["detail"]
    assert client.get("/v1/queues")["queues"] == []


def test_arguments_over_the_limits_are_refused(client: Client) -> None:
    large = client.post("/v1/queues/q/tasks", {"type": "add", "arguments": {"x": "y" * 262_144}}, 413)
    assert large["type"].endswith("payload-too-large")
    deep = b'{"type": "add", "arguments": {"x": ' + b"[" * 64 + b"]" * 64 + b"}}"
    assert client.post("/v1/queues/q/tasks", deep, 413)["type"].endswith("payload-too-deep")
    deeper = b'{"type": "add", "arguments": {"x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}}"
    assert client.post("/v1/queues/q/tasks", deeper, 413)["type"].endswith("payload-too-deep")


def test_bytes_that_are_no_json_are_shown_as_base64(client: Client) -> None:
    claim = client.claim()
    store_change = {"event": "ack", "task_id": claim["task_id"], "token": claim["token"], "result": "AP/+"}
    assert client.post("/v1/store/apply", {"changes": [store_change]})[0]["applied"]
    task = client.get(f"/v1/tasks/{claim['task_id']}")
    assert (task["result"], task["result_base64"]) == (None, "AP/+")


def test_an_unknown_task_is_404_in_every_form(client: Client) -> None:
    for path in (f"/v1/tasks/{NO_TASK}", f"/v1/tasks/{NO_TASK}/why", f"/v1/tasks/{NO_TASK}/history", "/v1/tasks/x"):
        assert client.get(path, 404)["type"].endswith("unknown-task")
    for verb, body in (
        ("ack", {"token": "1.1.x"}),
        ("release", {"token": "1.1.x"}),
        ("extend", {"token": "1.1.x"}),
        ("fail", {"token": "1.1.x", "error": {"type": "E"}}),
        ("snooze", {"token": "1.1.x", "delay": 1}),
        ("cancel", {}),
        ("prioritize", {"priority": 1}),
    ):
        assert client.post(f"/v1/tasks/{NO_TASK}/{verb}", body, 404)["type"].endswith("unknown-task")


def test_a_caller_waits_for_the_result(client: Client) -> None:
    claim = client.claim()
    found: list[dict[str, Any]] = []
    other = Client(client.port)
    waiting = threading.Thread(target=lambda: found.append(other.get(f"/v1/tasks/{claim['task_id']}?wait=20s")))
    waiting.start()
    client.post(f"/v1/tasks/{claim['task_id']}/ack", {"token": claim["token"], "result": {"sum": 3}})
    waiting.join(20)
    other.close()
    assert (found[0]["state"], found[0]["result"]) == ("succeeded", {"sum": 3})
    assert found[0]["history"][0]["outcome"] == "succeeded"


def test_a_wait_that_ends_first_shows_the_task_as_it_is(client: Client) -> None:
    task_id = client.enqueue()
    assert client.get(f"/v1/tasks/{task_id}?wait=50ms")["state"] == "ready"
    assert client.get(f"/v1/tasks/{task_id}?wait=never", 422)["type"].endswith("bad-duration")


def test_tasks_are_found_page_by_page(client: Client) -> None:
    ids = [client.enqueue("a", type=f"t{number % 2}") for number in range(5)]
    client.enqueue("b")
    first = client.get("/v1/tasks?queue=a&limit=3")
    second = client.get(f"/v1/tasks?queue=a&limit=3&cursor={first['cursor']}")
    assert [task["task_id"] for task in first["tasks"] + second["tasks"]] == ids[::-1]
    assert second["cursor"] is None
    assert len(client.get("/v1/tasks?type=t1&state=ready&state=scheduled")["tasks"]) == 2
    assert client.get("/v1/tasks?state=succeeded")["tasks"] == []
    assert "history" not in first["tasks"][0]


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "state=lost", "colour=red", "queue=a&queue=b"])
def test_a_wrong_query_is_refused(client: Client, query: str) -> None:
    assert client.get(f"/v1/tasks?{query}", 422)["type"].endswith("invalid")


def test_why_and_history_tell_of_a_task(client: Client) -> None:
    claim = client.claim()
    log = [[1_700_000_000_000, "info", "half way"]]
    told = {"token": claim["token"], "progress": {"done": 1, "total": 2, "log": log}}
    client.post(f"/v1/tasks/{claim['task_id']}/extend", told)
    explanation = client.get(f"/v1/tasks/{claim['task_id']}/why")
    assert explanation["cause"] == "running"
    assert "worker-1" in explanation["text"]
    assert client.get(f"/v1/tasks/{claim['task_id']}")["progress"]["done"] == 1
    body = {"token": claim["token"], "error": {"type": "E", "message": "no"}, "retry_in": "1h"}
    assert client.post(f"/v1/tasks/{claim['task_id']}/fail", body)["state"] == "retry_pending"
    history = client.get(f"/v1/tasks/{claim['task_id']}/history")
    assert history["attempts"][0]["error"] == {"type": "E", "message": "no", "log": log}
    assert history["log"] == [{"at_ms": 1_700_000_000_000, "level": "info", "text": "half way"}]


def test_a_waiting_task_is_cancelled_and_a_running_one_told(client: Client) -> None:
    waiting = client.enqueue()
    assert client.post(f"/v1/tasks/{waiting}/cancel", {"reason": "changed my mind"})["state"] == "cancelled"
    assert client.get(f"/v1/tasks/{waiting}")["reason"] == "changed my mind"
    assert client.post(f"/v1/tasks/{waiting}/cancel")["repeated"] is True
    running = client.claim()
    assert client.post(f"/v1/tasks/{running['task_id']}/cancel")["state"] == "claimed"
    told = client.post(f"/v1/tasks/{running['task_id']}/extend", {"token": running["token"]})
    assert told["cancel_requested"] is True
    client.post(f"/v1/tasks/{running['task_id']}/release", {"token": running["token"]})
    assert client.get(f"/v1/tasks/{running['task_id']}")["state"] == "cancelled"


def test_only_a_waiting_task_is_prioritized(client: Client) -> None:
    first, second = client.enqueue(), client.enqueue()
    assert client.post(f"/v1/tasks/{second}/prioritize", {"priority": 50})["state"] == "ready"
    assert client.reserve()[0]["task_id"] == second
    problem = client.post(f"/v1/tasks/{second}/prioritize", {"priority": 1}, 409)
    assert (problem["reason"], problem["state"]) == ("wrong_state", "claimed")
    assert client.get(f"/v1/tasks/{first}")["priority"] == 0


def test_how_long_a_task_is_kept_is_said_by_the_server_or_by_the_task(tmp_path: Path) -> None:
    policy = RunPolicy(result_ttl_ms=1_000, dead_letter_ttl_ms=2_000)
    with sqlite_server(tmp_path, ServerSettings(maintenance=False, policy=policy)) as server:
        client = Client(server.port)
        task_id = client.enqueue(retry={"max_attempts": 2})
        kept = client.get(f"/v1/tasks/{task_id}")["policy"]
        assert (kept["result_ttl_ms"], kept["dead_letter_ttl_ms"], kept["max_attempts"]) == (1_000, 2_000, 2)
        task_id = client.enqueue(result_ttl="1h", dead_letter_ttl=0)
        kept = client.get(f"/v1/tasks/{task_id}")["policy"]
        assert (kept["result_ttl_ms"], kept["dead_letter_ttl_ms"]) == (3_600_000, 0)
        schedule = {"type": "add", "every": "1h", "dead_letter_ttl": "90d"}
        kept = client.put("/v1/schedules/hourly", schedule)["call"]["policy"]
        assert (kept["result_ttl_ms"], kept["dead_letter_ttl_ms"]) == (1_000, 90 * 86_400_000)
        own = RunPolicy(result_ttl_ms=5, dead_letter_ttl_ms=6)  # of an app that comes by the contract: as it is
        task = NewTask(task_id="0" * 31 + "1", type="add", queue="q", payload=b"{}", policy=own)

        async def through(store: Store) -> Task | None:
            await store.enqueue([task])
            return (await store.get([task.task_id]))[0]

        found = with_store(server.url, through)
        assert found is not None
        assert found.policy == own
        client.close()


def test_a_task_id_in_a_partition_that_its_queue_does_not_use_is_refused_for_good(tmp_path: Path) -> None:
    """A client that is told to come again would come for ever."""
    url = ",".join(f"sqlite:///{tmp_path}/{name}.db" for name in "ab")
    with running_server(lambda: open_store(url), settings=ServerSettings(maintenance=False)) as server:
        client = Client(server.port)
        client.post("/v1/queues/q/tasks", {"type": "add"}, 201)
        statuses = {}
        for partition in range(3):
            body = {"type": "add", "task_id": f"{1:012x}{partition:04x}{2:016x}"}
            answer = client.send("POST", "/v1/queues/q/tasks", body)
            statuses[partition] = answer.status
            assert answer.status == 201 or "leave task_id out" in answer.json["detail"]
        assert sorted(statuses.values()) == [201, 422, 422]
        client.close()
