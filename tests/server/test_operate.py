"""What operators do over HTTP: dead letters, schedules, queues, workers, partitions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.stores.contract import Document
from holdfast.stores.documents import discard_of
from tests.server.setting import Client

# -- dead letters ----------------------------------------------------------------------------------------------------


def test_dead_letters_are_found_and_grouped(client: Client) -> None:
    ids = [client.dead_letter(type=name) for name in ("a", "b", "a")]
    found = client.get("/v1/dead-letters?type=a")["tasks"]
    assert [task["task_id"] for task in found] == [ids[2], ids[0]]
    assert found[0]["history"][0]["error"]["message"] == "bad luck"
    assert client.get("/v1/dead-letters?error_type=KeyError")["tasks"] == []
    assert len(client.get("/v1/dead-letters?error_type=ValueError&limit=2")["tasks"]) == 2
    groups = client.get("/v1/dead-letters/by-error")
    assert [(group["type"], group["count"]) for group in groups["groups"]] == [("a", 2), ("b", 1)]
    assert groups["complete"] is True


def test_dead_letters_are_replayed_by_id(client: Client) -> None:
    dead, ready = client.dead_letter(), client.enqueue("other")
    answer = client.post("/v1/dead-letters/replay", {"task_ids": [dead, ready, "0" * 32]})
    assert (answer["matched"], answer["changed"]) == (3, 1)
    assert [task["reason"] for task in answer["tasks"]] == ["", "wrong_state", "unknown"]
    assert client.get(f"/v1/tasks/{dead}")["state"] == "ready"


def test_dead_letters_are_replayed_by_filter(client: Client) -> None:
    ids = [client.dead_letter(type=name) for name in ("a", "b", "a")]
    assert (
        client.post("/v1/dead-letters/replay", {"filter": {"type": "a"}, "rate": 1_000, "limit": 1_000})["changed"] == 2
    )
    assert [client.get(f"/v1/tasks/{task_id}")["state"] for task_id in ids] == ["ready", "dead_lettered", "ready"]


def test_dead_letters_are_discarded_with_a_record(client: Client) -> None:
    first, second = client.dead_letter(), client.dead_letter()
    assert client.post("/v1/dead-letters/discard", {"task_ids": [first], "reason": "too old"})["changed"] == 1
    assert client.post("/v1/dead-letters/discard", {"filter": {}, "reason": "all of them"})["changed"] == 1
    client.get(f"/v1/tasks/{first}", 404)
    page = client.post("/v1/store/documents", {"kind": "discard", "limit": 10})
    records = [discard_of(msgspec.convert(each, Document)) for each in page["documents"]]
    assert {(record.task_id, record.reason) for record in records} == {
        (first, "too old"),
        (second, "all of them"),
    }


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "either"),
        ({"task_ids": [], "filter": {}}, "either"),
        ({"filter": {"colour": "red"}}, "colour"),
        ({"filter": {}, "rate": 0}, "> 0"),
        ({"filter": {}, "rate": 1, "limit": 1_000}, "60 at a time"),
        ({"task_ids": ["x"]}, "task_ids"),
    ],
)
def test_a_wrong_replay_is_refused(client: Client, body: dict[str, Any], words: str) -> None:
    assert words in client.post("/v1/dead-letters/replay", body, 422)["detail"]


def test_a_discard_needs_a_reason(client: Client) -> None:
    assert "reason" in client.post("/v1/dead-letters/discard", {"filter": {}}, 422)["detail"]


# -- schedules -------------------------------------------------------------------------------------------------------

NIGHTLY = {"type": "report", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "arguments": {"full": True}}


def test_a_schedule_is_made_looked_at_changed_and_removed(client: Client) -> None:
    made = client.put("/v1/schedules/nightly", {**NIGHTLY, "queue": "reports", "overlap": "skip", "timeout": "1h"})
    assert (made["timing"]["cron"], made["call"]["arguments"], made["call"]["queue"]) == (
        "0 3 * * *",
        {"full": True},
        "reports",
    )
    assert client.get("/v1/schedules/nightly") == made
    assert client.get("/v1/schedules")["schedules"] == [made]
    assert (
        client.put("/v1/schedules/nightly", {**NIGHTLY, "queue": "reports", "overlap": "skip", "timeout": "1h"}) == made
    )
    occurrences = client.get("/v1/schedules/nightly/next?count=2")["next"]
    assert [occurrence[10:19] for occurrence in occurrences] == ["T03:00:00", "T03:00:00"]
    paused = client.post("/v1/schedules/nightly/pause")
    assert (paused["paused"], paused["next_at_ms"]) == (True, None)
    assert client.post("/v1/schedules/nightly/resume")["next_at_ms"] is not None
    changed = client.put("/v1/schedules/nightly", {"type": "report", "every": "10m"})
    assert (changed["timing"]["every_ms"], changed["timing"]["cron"]) == (600_000, None)
    client.delete("/v1/schedules/nightly")
    assert client.get("/v1/schedules/nightly", 404)["type"].endswith("unknown-schedule")


def test_a_schedule_is_run_now_once_for_each_key(client: Client) -> None:
    client.put("/v1/schedules/nightly", NIGHTLY)
    first = client.post("/v1/schedules/nightly/run", {}, 201, {"Idempotency-Key": "monday"})
    client.post("/v1/schedules/nightly/run", {}, 201)
    again = client.post("/v1/schedules/nightly/run", {}, 201, {"Idempotency-Key": "monday"})
    assert again == first
    assert len(client.get("/v1/tasks?type=report")["tasks"]) == 2
    assert client.get(f"/v1/tasks/{first['task_id']}")["arguments"] == {"full": True}


@pytest.mark.parametrize(
    "body",
    [
        {"type": "report"},
        {"type": "report", "cron": "61 * * * *"},
        {"type": "report", "cron": "0 3 * * *", "timezone": "Mars/Olympus"},
        {"type": "report", "cron": "0 3 * * *", "every": "1h"},
        {"type": "report", "every": 0},
        {"type": "report", "every": "1h", "missed": "never"},
        {"cron": "0 3 * * *"},
    ],
)
def test_a_wrong_schedule_is_refused(client: Client, body: dict[str, Any]) -> None:
    assert client.put("/v1/schedules/bad", body, 422)["detail"]
    assert client.get("/v1/schedules")["schedules"] == []


# -- queues ----------------------------------------------------------------------------------------------------------


def test_a_queue_is_paused_and_resumed(client: Client) -> None:
    client.enqueue()
    assert client.post("/v1/queues/default/pause")["paused"] is True
    assert client.reserve() == []
    assert client.post("/v1/queues/default/resume")["paused"] is False
    assert len(client.reserve()) == 1


def test_a_queue_has_an_order(client: Client) -> None:
    assert client.post("/v1/queues/q/order", {"order": "strict"})["order"] == "strict"
    assert client.post("/v1/queues/q/order", {"order": "aged", "step": "5m"})["step_ms"] == 300_000
    assert client.post("/v1/queues/q/order", {"order": "strict", "step": "5m"}, 422)["type"].endswith("bad-option")
    assert client.post("/v1/queues/q/order", {"order": "alphabetical"}, 422)["type"].endswith("invalid")


def test_queues_are_counted(client: Client) -> None:
    client.claim()
    client.enqueue()
    (queue,) = client.get("/v1/queues")["queues"]
    assert queue["states"] == {"ready": 1, "claimed": 1}
    assert client.get("/v1/queues/default")["states"] == queue["states"]
    assert client.get("/v1/queues/unused")["states"] == {}
    assert client.get("/v1/queues/a%20b", 422)["type"].endswith("bad-name")


def test_an_autoscaler_reads_one_number(client: Client) -> None:
    client.claim()
    for _ in range(9):
        client.enqueue()
    scale = client.get("/v1/queues/default/scale?per_worker=4")
    assert (scale["backlog"], scale["ready"], scale["running"], scale["desired"]) == (10, 9, 1, 3)
    assert client.get("/v1/queues/unused/scale")["desired"] == 0


# -- workers and partitions ------------------------------------------------------------------------------------------


def test_a_worker_over_http_is_listed_and_told_its_orders(client: Client) -> None:
    about = {"queues": ["default"], "types": ["add"], "concurrency": 4, "host": "here"}
    assert client.post("/v1/workers/node-1/announce", about)["concurrency"] is None
    (worker,) = client.get("/v1/workers")["workers"]
    assert (worker["worker_id"], worker["alive"], worker["concurrency"]) == ("node-1", True, 4)
    assert client.get("/v1/workers/node")["worker_id"] == "node-1"
    assert client.post("/v1/workers/node-1/concurrency", {"concurrency": 8}) == {
        "worker_id": "node-1",
        "concurrency": 8,
    }
    assert client.post("/v1/workers/node-1/announce", about)["concurrency"] == 8
    task_id = client.enqueue()
    assert client.get(f"/v1/tasks/{task_id}/why")["cause"] == "next"
    client.post("/v1/workers/node-1/announce", {**about, "ttl": 0})
    assert client.get("/v1/workers/node-1", 404)["type"].endswith("unknown-worker")
    assert client.post("/v1/workers/node-1/concurrency", {"concurrency": 8}, 404)["status"] == 404


@pytest.mark.parametrize(
    ("more", "words"),
    [({"ttl": "2h"}, "ttl"), ({"types": ["t" * 120] * 3_000}, "their names may have 65,536 characters together")],
)
def test_a_worker_that_says_too_much_of_itself_is_not_listed(client: Client, more: dict[str, Any], words: str) -> None:
    about = {"queues": ["default"], "types": ["add"], **more}
    assert words in client.post("/v1/workers/node-1/announce", about, 422)["detail"]
    assert client.get("/v1/workers")["workers"] == []


def test_partitions_are_listed(client: Client) -> None:
    client.enqueue()
    listed = client.get("/v1/partitions")
    assert [(row["partition"], row["depth"], row["error"]) for row in listed["partitions"]] == [(0, 1, None)]
