"""What an OpenAPI document cannot say: what one field means for another, and what is a cron line."""

from __future__ import annotations

from random import Random
from typing import Any, Final
from urllib.parse import unquote

_TIMINGS: Final = (
    {"cron": "0 3 * * *"},
    {"cron": "*/5 9-17 * * mon-fri", "timezone": "Europe/Berlin"},
    {"cron": "@hourly", "timezone": "UTC"},
    {"every": "1h"},
    {"every": 90},
)
_ABOUT_TIME: Final = ("cron", "every", "timezone", "jitter", "window")


def sensible_query(query: dict[str, Any]) -> dict[str, Any]:
    """The query without a cursor that no page has ended with."""
    return {name: value for name, value in query.items() if name != "cursor"}


def sensible_address(parts: dict[str, Any]) -> dict[str, Any]:
    """The address; the name of a worker can be printed, for which there is no pattern that everybody understands."""
    return {name: value if unquote(str(value)).isprintable() else "node-1" for name, value in parts.items()}


def sensible_body(operation: str, body: Any, random: Random) -> Any:
    """The body, if its fields go together."""
    body = _with_whole_numbers(body)
    if not isinstance(body, dict):
        return body
    if operation in {"enqueue", "enqueue_many"}:
        return _tasks(body, drop_queue=operation == "enqueue")
    if operation in {"replay_dead_letters", "discard_dead_letters"} and "rate" in body:
        return {**body, "rate": 10_000}
    if operation == "order_queue" and body.get("step") is not None:
        return {**body, "order": "aged", "step": body["step"] or "1m"}
    if operation == "put_schedule":
        timeless = {name: value for name, value in body.items() if name not in _ABOUT_TIME}
        return _limited({**timeless, **random.choice(_TIMINGS)})
    if operation == "announce_worker":
        return {**body, **{name: "somewhere" for name in ("host", "version") if not str(body.get(name)).isprintable()}}
    if operation == "store_put":  # of a kind whose values may be anything, and without tasks that lie elsewhere
        return {**body, "kind": "note", "name": "n-1", "tasks": [], "epoch": None}
    if operation == "store_documents":
        return {**body, "kind": random.choice(("note", "schedule", "queue")), "names": None, "cursor": None}
    if operation == "store_find":
        return {**body, "query": {**body["query"], "cursor": None}}
    return body


def _tasks(body: dict[str, Any], *, drop_queue: bool) -> dict[str, Any]:
    if isinstance(body.get("tasks"), list):
        return {**body, "tasks": [_tasks(each, drop_queue=drop_queue) for each in body["tasks"]]}
    return {name: value for name, value in _limited(body).items() if name != "queue" or not drop_queue}


def _limited(body: dict[str, Any]) -> dict[str, Any]:
    """A task may not be killed before it is asked to end, nor expire before it is due."""
    return {
        name: value
        for name, value in body.items()
        if (name != "hard_timeout" or "timeout" not in body) and (name != "expires" or "delay" not in body)
    }


def _with_whole_numbers(value: Any) -> Any:
    """1.0 is an integer to JSON Schema; programs that mean one write 1."""
    if isinstance(value, list):
        return [_with_whole_numbers(each) for each in value]
    if isinstance(value, dict):
        return {name: _with_whole_numbers(each) for name, each in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value
