"""Working over HTTP: reserve, settle, extend."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.stores.contract import MAX_RESERVE_BYTES
from tests.server.setting import Client


def test_a_claim_has_what_a_worker_needs(client: Client) -> None:
    task_id = client.enqueue(arguments={"a": 1}, headers={"trace": "x"}, priority=7, timeout="1m")
    answer = client.post("/v1/reserve", {"worker_id": "node-1", "queues": ["default"], "lease": "10s"})
    (task,) = answer["tasks"]
    assert task["task_id"] == task_id
    assert (task["arguments"], task["headers"], task["priority"]) == ({"a": 1}, {"trace": "x"}, 7)
    assert (task["attempt"], task["max_attempts"], task["timeout_ms"]) == (1, 5, 60_000)
    assert task["lease_expires_at_ms"] == task["claimed_at_ms"] + 10_000
    assert answer["claim_id"] in task["token"]
    assert client.reserve() == []


def test_queues_are_looked_into_in_their_order_and_by_their_limits(client: Client) -> None:
    for queue in ("low", "high"):
        for _ in range(3):
            client.enqueue(queue)
    shares = [{"queue": "high", "limit": 1}, {"queue": "low", "limit": 1}]
    taken = client.reserve(queues=shares, max_tasks=3)
    assert sorted(task["queue"] for task in taken) == ["high", "high", "low"]
    assert [task["queue"] for task in client.reserve(queues=["low", "high"], max_tasks=10)] == ["low", "low", "high"]


def test_only_types_that_are_asked_for_are_handed_out(client: Client) -> None:
    client.enqueue(type="new")
    old = client.enqueue(type="old")
    assert [task["task_id"] for task in client.reserve(types=["old"], max_tasks=5)] == [old]


def test_the_same_claim_id_gets_the_same_tasks(client: Client) -> None:
    client.enqueue()
    client.enqueue()
    first = client.reserve(claim_id="mine", max_tasks=2)
    assert client.reserve(claim_id="mine", max_tasks=2) == first
    client.enqueue()
    body = {"worker_id": "w", "queues": ["default"]}
    (task,) = client.post("/v1/reserve", body, headers={"Idempotency-Key": "k"})["tasks"]
    (again,) = client.post("/v1/reserve", body, headers={"Idempotency-Key": "k"})["tasks"]
    assert again == task


def test_an_ack_may_be_repeated_and_a_stale_one_is_refused(client: Client) -> None:
    claim = client.claim()
    path = f"/v1/tasks/{claim['task_id']}/ack"
    assert client.post(path, {"token": claim["token"], "result": [1, None]})["state"] == "succeeded"
    assert client.post(path, {"token": claim["token"], "result": [1, None]})["repeated"] is True
    problem = client.post(path, {"token": "1.1.somebody-else"}, 409)
    assert problem["type"].endswith("stale-claim")
    assert (problem["reason"], problem["state"]) == ("stale_claim", "succeeded")
    assert client.get(f"/v1/tasks/{claim['task_id']}")["result"] == [1, None]


def test_the_policy_says_what_a_failure_leads_to(client: Client) -> None:
    error = {"type": "builtins.ValueError", "message": "no", "traceback": "line 1"}
    for policy, body, state in (
        ({"max_attempts": 2}, {}, "retry_pending"),
        ({"max_attempts": 1}, {}, "dead_lettered"),
        ({"max_attempts": 1, "dead_letter": False}, {}, "failed"),
        ({"max_attempts": 9}, {"retryable": False}, "dead_lettered"),
        ({"max_attempts": 9, "give_up_on": ["ValueError"]}, {}, "dead_lettered"),
    ):
        claim = client.claim(retry=policy)
        answer = client.post(f"/v1/tasks/{claim['task_id']}/fail", {"token": claim["token"], "error": error, **body})
        assert answer["state"] == state, policy


def test_a_failure_names_its_own_delay(client: Client) -> None:
    claim = client.claim()
    client.post(
        f"/v1/tasks/{claim['task_id']}/fail", {"token": claim["token"], "error": {"type": "E"}, "retry_in": "1h"}
    )
    task = client.get(f"/v1/tasks/{claim['task_id']}")
    assert task["run_at_ms"] - task["history"][0]["ended_at_ms"] == 3_600_000


def test_the_repeat_of_a_failure_that_comes_late_is_still_a_success(client: Client) -> None:
    """The next attempt is the last one: decided by that, the old failure would bury the task."""
    claim = client.claim(retry={"max_attempts": 2})
    body = {"token": claim["token"], "error": {"type": "E"}, "retry_in": 0}
    path = f"/v1/tasks/{claim['task_id']}/fail"
    assert client.post(path, body)["state"] == "retry_pending"
    epoch = client.post("/v1/store/lead", {"name": "maintenance", "owner": "me", "ttl_ms": 60_000})["epoch"]
    client.post("/v1/store/promote", {"epoch": epoch})
    (second,) = client.reserve()
    assert second["attempt"] == 2
    repeat = client.post(path, body)
    assert (repeat["applied"], repeat["repeated"], repeat["state"]) == (True, True, "claimed")
    assert client.post(path, {**body, "token": second["token"]})["state"] == "dead_lettered"


def test_release_and_snooze_use_up_no_attempt(client: Client) -> None:
    claim = client.claim()
    path = f"/v1/tasks/{claim['task_id']}"
    assert client.post(f"{path}/release", {"token": claim["token"]})["state"] == "ready"
    (claim,) = client.reserve()
    assert (claim["attempt"], client.get(path)["deliveries"]) == (1, 2)
    assert client.post(f"{path}/snooze", {"token": claim["token"], "delay": "1h"})["state"] == "scheduled"
    assert client.get(path)["attempt"] == 0


def test_extend_gives_more_time_and_tells_of_a_lost_claim(client: Client) -> None:
    claim = client.claim()
    path = f"/v1/tasks/{claim['task_id']}"
    assert client.post(f"{path}/extend", {"token": claim["token"], "lease": "1h"})["held"] is True
    assert client.get(path)["lease_expires_at_ms"] > claim["lease_expires_at_ms"] + 3_000_000
    client.post(f"{path}/release", {"token": claim["token"]})
    problem = client.post(f"{path}/extend", {"token": claim["token"]}, 409)
    assert problem["type"].endswith("stale-claim")
    assert problem["reason"]
    holds = [{"task_id": claim["task_id"], "token": claim["token"]}, {"task_id": "0" * 32, "token": "1.1.x"}]
    answers = client.post("/v1/extend", {"holds": holds})["holds"]
    assert [answer["held"] for answer in answers] == [False, False]
    assert answers[1]["reason"] == "unknown"


def test_any_changes_are_settled_in_one_request(client: Client) -> None:
    claims = [client.claim(retry={"max_attempts": 3}) for _ in range(5)]
    waiting, dead = client.enqueue("later"), client.dead_letter()
    verbs: list[dict[str, Any]] = [
        {"event": "ack", "result": 1},
        {"event": "fail", "error": {"type": "E"}},
        {"event": "snooze", "delay": 60},
        {"event": "release"},
        {"event": "stop", "reason": "enough"},
    ]
    changes = [
        {**verb, "task_id": claim["task_id"], "token": claim["token"]}
        for verb, claim in zip(verbs, claims, strict=True)
    ]
    changes += [
        {"event": "prioritize", "task_id": waiting, "priority": 9},
        {"event": "cancel", "task_id": waiting},
        {"event": "discard", "task_id": dead, "reason": "old"},
        {"event": "replay", "task_id": dead},
        {"event": "ack", "task_id": claims[0]["task_id"], "token": "1.1.x"},
    ]
    answers = client.post("/v1/settle", {"changes": changes})["changes"]
    states = ["succeeded", "retry_pending", "scheduled", "ready", "cancelled", "later", "cancelled", None, None]
    states[5] = "ready"
    assert [answer["state"] for answer in answers[:9]] == states
    assert [answer["applied"] for answer in answers] == [True] * 8 + [False, False]
    assert [answer["reason"] for answer in answers[8:]] == ["unknown", "stale_claim"]


def test_a_reserve_settles_the_last_batch(client: Client) -> None:
    claim = client.claim()
    client.enqueue()
    body = {
        "worker_id": "w",
        "queues": ["default"],
        "settle": [{"event": "ack", "task_id": claim["task_id"], "token": claim["token"]}],
    }
    answer = client.post("/v1/reserve", body)
    assert [each["state"] for each in answer["settled"]] == ["succeeded"]
    assert len(answer["tasks"]) == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"queues": ["a"]}, "worker_id"),
        ({"worker_id": "w", "queues": []}, "length >= 1"),
        ({"worker_id": "w", "queues": ["*maintenance"]}, "queues"),
        ({"worker_id": "w", "queues": ["a"], "max_tasks": 0}, ">= 1"),
        ({"worker_id": "w", "queues": ["a"], "lease": "1ms"}, "lease"),
        ({"worker_id": "w", "queues": ["a"], "lease": "2d"}, "lease"),
        ({"worker_id": "w", "queues": ["a"], "settle": [{"event": "vanish"}]}, "vanish"),
    ],
)
def test_a_wrong_reserve_is_refused(client: Client, body: dict[str, Any], words: str) -> None:
    assert words in client.post("/v1/reserve", body, 422)["detail"]


def test_results_over_the_limit_are_refused_and_the_claim_stays(client: Client) -> None:
    claim = client.claim()
    path = f"/v1/tasks/{claim['task_id']}/ack"
    problem = client.post(path, {"token": claim["token"], "result": "x" * 262_144}, 413)
    assert problem["type"].endswith("payload-too-large")
    assert client.post(path, {"token": claim["token"], "result": "short"})["state"] == "succeeded"


def test_a_claim_id_that_holds_as_much_as_a_reserve_may_give_gets_no_more(client: Client) -> None:
    """Each repeat of its reserve would bring all of it."""
    tasks = [{"type": "add", "arguments": {"x": "y" * 250_000}}] * 40
    client.post("/v1/queues/default/tasks", {"tasks": tasks})
    held: set[str] = set()
    for _ in range(4):
        held |= {task["task_id"] for task in client.reserve(claim_id="mine", fresh=True, max_tasks=40)}
    assert sum(250_000 for _ in held) < 2 * MAX_RESERVE_BYTES
    request = {"claim_id": "mine", "worker_id": "w", "shares": [["default", 40]], "max_tasks": 40, "lease_ms": 30_000}
    again = client.post("/v1/store/reserve", {"request": {**request, "fresh": True}})
    assert {task["task_id"] for task in again["tasks"]} == held
    client.enqueue("small")
    client.enqueue("small")
    small = [client.reserve("small", claim_id="another", fresh=True) for _ in range(2)]
    assert len({task["task_id"] for tasks in small for task in tasks}) == 2


def test_failures_by_the_hundred_keep_a_bounded_log(client: Client) -> None:
    for _ in range(40):
        client.enqueue(arguments={"x": "y" * 10_000})
    claims = client.reserve(max_tasks=40)
    lines = [[1, "info", "z" * 900] for _ in range(200)]
    holds = [{"task_id": claim["task_id"], "token": claim["token"], "progress": {"log": lines}} for claim in claims]
    client.post("/v1/extend", {"holds": holds})
    fail = {"event": "fail", "error": {"type": "builtins.ValueError", "message": "m"}, "retryable": False}
    changes = [{**fail, "task_id": claim["task_id"], "token": claim["token"]} for claim in claims]
    assert all(change["applied"] for change in client.post("/v1/settle", {"changes": changes})["changes"])
    (run,) = client.get(f"/v1/tasks/{claims[0]['task_id']}/history")["attempts"]
    assert 1 <= len(run["error"]["log"]) <= 18
