"""Examples of the OpenAPI document, one for each route."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

_TASK: Final = "01a1e06867e200000000abaa190ecb5f"
_OTHER: Final = "01a1e06867e900000001a422ab039b12"
_CLAIM: Final = "cd3ccf0e54fd67a149ef7cd84d65953a"
_TOKEN: Final = f"1.1.{_CLAIM}"
_NOW: Final = 1_794_766_301_154

_POLICY: Final = {
    "max_attempts": 5,
    "base_ms": 30_000,
    "cap_ms": 1_800_000,
    "jitter": 0.5,
    "give_up_on": [],
    "retry_on": [],
    "dead_letter": True,
    "timeout_ms": None,
    "hard_timeout_ms": None,
    "expires_ms": None,
    "result_ttl_ms": 86_400_000,
    "dead_letter_ttl_ms": 1_209_600_000,
}
_SUCCEEDED: Final = {
    "task_id": _TASK,
    "type": "resize",
    "queue": "images",
    "state": "succeeded",
    "priority": 0,
    "attempt": 1,
    "deliveries": 1,
    "created_at_ms": _NOW,
    "run_at_ms": _NOW,
    "finished_at_ms": _NOW + 950,
    "worker_id": None,
    "claimed_at_ms": None,
    "lease_expires_at_ms": None,
    "cancel_requested": False,
    "reason": None,
    "request_id": "order-42",
    "headers": {},
    "policy": _POLICY,
    "arguments": {"url": "cat.jpg", "width": 800},
    "result": "cat-800.jpg",
    "progress": None,
}
_RUN: Final = {
    "delivery": 1,
    "attempt": 1,
    "worker_id": "node-1",
    "outcome": "succeeded",
    "started_at_ms": _NOW + 12,
    "ended_at_ms": _NOW + 950,
    "error": None,
}
_FAILED_RUN: Final = {
    **_RUN,
    "outcome": "failed",
    "error": {"type": "TypeError", "message": "no such image"},
}
_DEAD: Final = {
    **_SUCCEEDED,
    "state": "dead_lettered",
    "reason": "not_retryable",
    "result": None,
    "history": [_FAILED_RUN],
}
_QUEUE: Final = {
    "queue": "images",
    "paused": False,
    "order": "aged",
    "step_ms": 60_000,
    "states": {"ready": 120, "claimed": 30},
    "oldest_ready_ms": 4_200,
    "workers": 3,
}
_SCHEDULE: Final = {
    "name": "nightly",
    "timing": {
        "cron": "0 3 * * *",
        "timezone": "Europe/Berlin",
        "every_ms": None,
        "jitter_ms": 0,
        "missed": "once",
        "window_ms": 3_600_000,
        "overlap": "skip",
    },
    "call": {
        "type": "report",
        "queue": "default",
        "arguments": {"full": True},
        "headers": {},
        "priority": 0,
        "policy": _POLICY,
    },
    "source": "",
    "paused": False,
    "waiting": False,
    "next_at_ms": 1_794_794_400_000,
    "last_at_ms": None,
    "last_task_id": None,
    "skipped_at_ms": None,
    "skipped_because": "",
    "version": 1,
}
_WORKER: Final = {
    "worker_id": "node-1",
    "host": "10.0.0.7",
    "pid": 4711,
    "version": "node 20",
    "queues": ["images"],
    "types": ["resize"],
    "processes": 1,
    "concurrency": 10,
    "running": 3,
    "memory_bytes": 0,
    "ended_last_minute": 0,
    "status": "running",
    "started_at_ms": _NOW,
    "seen_at_ms": _NOW + 5_000,
    "alive": True,
}


class Example(NamedTuple):
    """A body, if the route takes one, and the answer."""

    request: Any
    answer: Any


def _changed(state: str) -> dict[str, Any]:
    return {"task_id": _TASK, "applied": True, "repeated": False, "reason": "", "state": state}


EXAMPLES: Final = {
    "enqueue": Example(
        {"type": "resize", "arguments": {"url": "cat.jpg", "width": 800}, "request_id": "order-42"},
        {"task_id": _TASK, "created": True},
    ),
    "enqueue_many": Example(
        {
            "tasks": [
                {"type": "resize", "queue": "images", "arguments": {"url": "cat.jpg"}},
                {"type": "send", "queue": "mails", "arguments": {"to": "zoë"}, "delay": "10m", "priority": 5},
            ]
        },
        {"tasks": [{"task_id": _TASK, "created": True}, {"task_id": _OTHER, "created": True}]},
    ),
    "show_task": Example(None, {**_SUCCEEDED, "history": [_RUN]}),
    "find_tasks": Example(None, {"tasks": [_SUCCEEDED], "cursor": None}),
    "explain_task": Example(
        None,
        {
            "task_id": _TASK,
            "state": "ready",
            "cause": "behind_others",
            "text": "It has been ready for 4.2s, behind 12 others in queue images, served by 1 worker with 10 of 10 "
            "slots busy.",
        },
    ),
    "show_history": Example(
        None,
        {
            "task_id": _TASK,
            "attempts": [_RUN],
            "log": [{"at_ms": _NOW + 40, "level": "info", "text": "downloaded 3 MB"}],
        },
    ),
    "cancel_task": Example({"reason": "the order was withdrawn"}, _changed("cancelled")),
    "prioritize_task": Example({"priority": 50}, _changed("ready")),
    "reserve": Example(
        {"worker_id": "node-1", "queues": ["images"], "max_tasks": 10, "lease": "30s", "wait": "20s"},
        {
            "claim_id": _CLAIM,
            "tasks": [
                {
                    "task_id": _TASK,
                    "token": _TOKEN,
                    "type": "resize",
                    "queue": "images",
                    "arguments": {"url": "cat.jpg", "width": 800},
                    "headers": {},
                    "priority": 0,
                    "attempt": 1,
                    "max_attempts": 5,
                    "timeout_ms": None,
                    "created_at_ms": _NOW,
                    "claimed_at_ms": _NOW + 12,
                    "lease_expires_at_ms": _NOW + 30_012,
                }
            ],
            "settled": [],
        },
    ),
    "settle": Example(
        {
            "changes": [
                {"event": "ack", "task_id": _TASK, "token": _TOKEN, "result": "cat-800.jpg"},
                {
                    "event": "fail",
                    "task_id": _OTHER,
                    "token": _TOKEN,
                    "error": {"type": "TypeError", "message": "no such image"},
                },
            ]
        },
        {"changes": [_changed("succeeded"), {**_changed("retry_pending"), "task_id": _OTHER}]},
    ),
    "ack": Example({"token": _TOKEN, "result": "cat-800.jpg"}, _changed("succeeded")),
    "fail": Example(
        {
            "token": _TOKEN,
            "error": {"type": "TypeError", "message": "no such image", "traceback": "at resize (worker.js:12)"},
            "retryable": False,
        },
        _changed("dead_lettered"),
    ),
    "snooze": Example({"token": _TOKEN, "delay": "5m"}, _changed("scheduled")),
    "release": Example({"token": _TOKEN}, _changed("ready")),
    "extend": Example(
        {"token": _TOKEN, "lease": "30s", "progress": {"done": 3, "total": 10, "note": "a third"}},
        {"task_id": _TASK, "held": True, "cancel_requested": False, "reason": ""},
    ),
    "extend_many": Example(
        {"holds": [{"task_id": _TASK, "token": _TOKEN}], "lease": "30s"},
        {"holds": [{"task_id": _TASK, "held": True, "cancel_requested": False, "reason": ""}]},
    ),
    "find_dead_letters": Example(None, {"tasks": [_DEAD], "cursor": None}),
    "group_dead_letters": Example(
        None,
        {
            "groups": [
                {
                    "type": "resize",
                    "error_type": "TypeError",
                    "count": 12,
                    "message": "no such image",
                    "newest_task_id": _TASK,
                    "newest_at_ms": _NOW + 950,
                }
            ],
            "looked_at": 12,
            "complete": True,
        },
    ),
    "replay_dead_letters": Example(
        {"filter": {"queue": "images", "error_type": "TypeError"}, "limit": 500, "rate": 50},
        {"matched": 12, "changed": 12, "tasks": []},
    ),
    "discard_dead_letters": Example(
        {"task_ids": [_TASK], "reason": "the image is gone for good"},
        {"matched": 1, "changed": 1, "tasks": [{**_changed("ready"), "state": None}]},
    ),
    "list_schedules": Example(None, {"schedules": [_SCHEDULE]}),
    "show_schedule": Example(None, _SCHEDULE),
    "put_schedule": Example(
        {
            "type": "report",
            "arguments": {"full": True},
            "cron": "0 3 * * *",
            "timezone": "Europe/Berlin",
            "overlap": "skip",
        },
        _SCHEDULE,
    ),
    "remove_schedule": Example(None, _SCHEDULE),
    "pause_schedule": Example({}, {**_SCHEDULE, "paused": True, "next_at_ms": None, "version": 2}),
    "resume_schedule": Example({}, {**_SCHEDULE, "version": 3}),
    "run_schedule": Example({}, {"task_id": _TASK, "created": True}),
    "next_occurrences": Example(None, {"name": "nightly", "next": ["2026-11-16T03:00:00+01:00"]}),
    "list_queues": Example(None, {"queues": [_QUEUE]}),
    "show_queue": Example(None, _QUEUE),
    "pause_queue": Example({}, {**_QUEUE, "paused": True}),
    "resume_queue": Example({}, _QUEUE),
    "order_queue": Example({"order": "aged", "step": "5m"}, {**_QUEUE, "step_ms": 300_000}),
    "scale_queue": Example(
        None,
        {
            "queue": "images",
            "backlog": 150,
            "ready": 120,
            "running": 30,
            "oldest_ready_seconds": 4.2,
            "workers": 3,
            "desired": 3,
        },
    ),
    "list_workers": Example(None, {"workers": [_WORKER]}),
    "show_worker": Example(None, _WORKER),
    "set_concurrency": Example({"concurrency": 20}, {"worker_id": "node-1", "concurrency": 20}),
    "announce_worker": Example(
        {
            "queues": ["images"],
            "types": ["resize"],
            "concurrency": 10,
            "running": 3,
            "host": "10.0.0.7",
            "pid": 4711,
            "version": "node 20",
        },
        {"concurrency": None},
    ),
    "list_partitions": Example(
        None,
        {
            "version": 0,
            "partitions": [
                {
                    "partition": 0,
                    "server": "redis://redis:6379/0",
                    "owner": "server-1",
                    "epoch": 3,
                    "depth": 150,
                    "error": None,
                }
            ],
        },
    ),
    "healthz": Example(None, {"status": "ok"}),
    "readyz": Example(None, {"status": "ok"}),
    "whoami": Example(None, {"name": "k7f3", "scopes": ["enqueue:images", "read"], "partitions": 1}),
}
