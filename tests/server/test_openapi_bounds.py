"""What is out of bounds is refused at the door, before a store is asked that could not keep it."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from typing import Any

import pytest

from holdfast.core.durations import duration_ms
from holdfast.server.app import ROUTES
from holdfast.server.openapi import FIELDS, WHOLE, openapi
from tests.server.setting import Client

SCHEMAS = openapi(ROUTES)["components"]["schemas"]
_NOBODY = "0" * 32
_ERROR = {"type": "builtins.ValueError", "message": "bad luck"}


def test_bounds_are_those_of_fields_that_exist() -> None:
    for name, fields in FIELDS.items():
        assert fields.keys() <= SCHEMAS[name]["properties"].keys(), name
    assert WHOLE.keys() <= SCHEMAS.keys()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/reserve", {"worker_id": "a\0b", "queues": ["q"]}),
        ("POST", "/v1/reserve", {"worker_id": "a\n", "queues": ["q"]}),
        ("POST", "/v1/reserve", {"worker_id": "w", "queues": ["q"], "claim_id": "a\0b"}),
        ("GET", "/v1/tasks?worker_id=a%00b", None),
        ("GET", "/v1/dead-letters?error_type=a%00b", None),
        ("POST", "/v1/dead-letters/replay", {"filter": {"error_type": "a\0b"}}),
        ("POST", "/v1/store/find", {"query": {"worker_id": "a\0b"}}),
        ("POST", "/v1/store/lead", {"name": "maintenance", "owner": "a\0b", "ttl_ms": 0}),
        ("POST", "/v1/store/documents", {"kind": "memo", "names": ["a\0b"]}),
        ("POST", "/v1/store/documents", {"kind": "orders", "names": ["a\0b"]}),
        ("POST", "/v1/store/documents", {"kind": "memo", "cursor": "a\0b"}),
    ],
)
def test_what_not_every_store_can_look_for_is_refused(client: Client, method: str, path: str, body: Any) -> None:
    assert client.send(method, path, body).status == 422


def test_how_long_to_wait_is_checked_even_if_there_is_no_such_task(client: Client) -> None:
    change = {"token": "1.1.x", "error": _ERROR, "retry_in": "soon"}
    assert client.send("POST", f"/v1/tasks/{_NOBODY}/fail", change).status == 422
    changes = [{"event": "fail", "task_id": _NOBODY, **change}]
    assert client.send("POST", "/v1/settle", {"changes": changes}).status == 422


@pytest.mark.parametrize("timing", [{}, {"cron": "nonsense"}, {"every_ms": -5}, {"every_ms": 60_000, "cron": "@daily"}])
def test_a_schedule_that_could_never_occurrence_is_refused(client: Client, timing: dict[str, Any]) -> None:
    schedule = {"name": "nightly", "timing": timing, "call": {"type": "report"}, "next_at_ms": 1}
    value = b64encode(json.dumps(schedule).encode()).decode()
    body = {"kind": "schedule", "name": "nightly", "expected": 0, "value": value}
    assert client.send("POST", "/v1/store/put", body).status == 422


def test_an_idempotency_key_is_checked_even_if_it_is_not_needed(client: Client) -> None:
    body = {"worker_id": "w", "queues": ["q"], "claim_id": "c"}
    assert client.send("POST", "/v1/reserve", body, {"Idempotency-Key": ""}).status == 422


def test_an_error_may_have_any_name(client: Client) -> None:
    """A refused failure would leave the task claimed until its lease runs out."""
    claim = client.claim()
    body = {"token": claim["token"], "error": {"type": "a\0b", "message": "\0", "traceback": "\0"}}
    assert client.post(f"/v1/tasks/{claim['task_id']}/fail", body)["applied"] is True


@pytest.mark.parametrize("text", ["30", "1.5s", "250ms", "1h30m", "7d", "2w", "999999m"])
def test_the_document_has_the_durations_that_are_understood(text: str) -> None:
    pattern = SCHEMAS["RetryBody"]["properties"]["base"]["anyOf"][1]["pattern"]
    assert re.fullmatch(pattern, text)
    assert duration_ms(text) > 0
