"""Large bodies: nothing is made of what is too much, and others have their turn while the rest is decoded."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from holdfast.core.task import MAX_HEADERS
from holdfast.errors import BadOption
from holdfast.server.bodies import OneOf, decoder
from holdfast.server.checks import check_item
from holdfast.server.operator_requests import AnnounceBody, ScheduleBody
from holdfast.server.requests import ReserveBody, SettleBody, TaskBody, TasksBody
from holdfast.stores.remote import calls
from holdfast.stores.remote.limits import MAX_BATCH_BYTES
from tests.server.setting import Client

_ENQUEUE = OneOf(TaskBody, TasksBody, "tasks")
_MANY = 200_000


def _bomb(head: bytes, item: bytes, tail: bytes) -> bytes:
    """As many items as fit into a body."""
    items = b",".join([item % number if b"%" in item else item for number in range(_MANY)])
    return head + items + tail


_BOMBS = {
    "headers": (_ENQUEUE, _bomb(b'{"type":"a","headers":{', b'"%d":""', b"}}")),
    "headers of one of many": (_ENQUEUE, _bomb(b'{"tasks":[{"type":"a","headers":{', b'"%d":""', b"}}]}")),
    "headers of a schedule": (ScheduleBody, _bomb(b'{"type":"a","every":1,"headers":{', b'"%d":""', b"}}")),
    "headers in the contract": (calls.Enqueue, _bomb(b'{"tasks":[{"headers":{', b'"%d":""', b"}}]}")),
    "unknown fields": (_ENQUEUE, _bomb(b"{", b'"%d":""', b"}")),
    "tasks": (_ENQUEUE, _bomb(b'{"tasks":[', b"{}", b"]}")),
    "changes": (SettleBody, _bomb(b'{"changes":[', b"{}", b"]}")),
    "tasks in the contract": (calls.Enqueue, _bomb(b'{"tasks":[', b"{}", b"]}")),
    "types": (calls.Reserve, _bomb(b'{"request":{"types":[', b'"type-%d"', b"]}}")),
    "types of a worker": (AnnounceBody, _bomb(b'{"queues":["q"],"types":[', b'"type-%d"', b"]}")),
    "types of a reserve": (ReserveBody, _bomb(b'{"worker_id":"w","queues":["q"],"types":[', b'"type-%d"', b"]}")),
    "log lines": (calls.Apply, _bomb(b'{"changes":[{"error":{"log":[', b'[%d,"",""]', b"]}}]}")),
}


@pytest.mark.parametrize("name", _BOMBS)
def test_nothing_is_made_of_what_is_too_much(name: str) -> None:
    kind, body = _BOMBS[name]
    decode = decoder(kind, check_item)

    async def refused() -> None:
        with pytest.raises(msgspec.ValidationError):
            await decode(body)

    tracemalloc.start()
    try:
        asyncio.run(refused())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_an_item_with_a_list_that_is_too_long_is_refused_before_the_next_one_is_decoded() -> None:
    task = {"task_id": "0" * 32, "type": "a", "queue": "q", "payload": "", "policy": {"retry_on": ["e" * 9] * 1_000}}
    body = json.dumps({"tasks": [task] * 1_000}).encode()
    seen = 0

    def check(item: Any) -> None:
        nonlocal seen
        seen += 1
        check_item(item)

    with pytest.raises(BadOption, match="retry_on"):
        asyncio.run(_decoded(calls.Enqueue, body, check))
    assert seen == 1


async def _decoded(kind: Any, body: bytes, check: Any = None) -> Any:
    return await decoder(kind, check)(body)


def test_a_large_body_says_what_a_small_one_would_say() -> None:
    tasks = [
        {"type": "a", "arguments": {"n": number, "text": 'ü\\"' * 5_000}, "headers": {"h": "v"}, "delay": "1s"}
        for number in range(20)
    ]
    body = json.dumps({"tasks": tasks}).encode()
    assert asyncio.run(_decoded(_ENQUEUE, body)) == msgspec.json.decode(body, type=TasksBody)
    one = json.dumps({"type": "a", "arguments": {"text": "x" * 100_000}, "retry": {"base": 0}}).encode()
    assert asyncio.run(_decoded(_ENQUEUE, one)) == msgspec.json.decode(one, type=TaskBody)
    changes = [
        {"event": "ack", "task_id": "0" * 32, "token": "t", "result": "x" * 100_000},
        {"event": "fail", "task_id": "0" * 32, "token": "t", "error": {"type": "e", "message": "m" * 16_000}},
    ]
    settle = json.dumps({"changes": changes}).encode()
    assert asyncio.run(_decoded(SettleBody, settle)) == msgspec.json.decode(settle, type=SettleBody)


@pytest.mark.parametrize(
    "body",
    [
        {"tasks": [{"arguments": {"x": "y" * 100_000}}]},
        {"tasks": [{"type": "a", "arguments": {"x": "y" * 100_000}}], "more": 1},
        {"tasks": [{"type": "a", "more": "y" * 100_000}]},
        {"tasks": {"type": "y" * 100_000}},
        {"type": "a", "headers": {f"h{number}": "v" * 1_000 for number in range(MAX_HEADERS)}},
        ["y" * 100_000],
    ],
)
def test_a_large_body_that_does_not_fit_is_refused(body: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        asyncio.run(_decoded(_ENQUEUE, json.dumps(body).encode()))


def test_others_have_their_turn_while_a_batch_is_decoded() -> None:
    task = {"type": "a", "arguments": {"x": "y" * 100_000}}
    body = json.dumps({"tasks": [task] * 50}).encode()
    turns = 0

    async def decoded() -> list[int]:
        def turn() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(turn)

        turn()
        seen: list[int] = []
        await decoder(_ENQUEUE, lambda _: seen.append(turns))(body)
        return seen

    assert len(set(asyncio.run(decoded()))) == 50


def test_more_headers_than_allowed_are_refused_and_as_many_as_allowed_are_taken(client: Client) -> None:
    most = {f"h{number}": "v" for number in range(MAX_HEADERS)}
    client.enqueue(headers=most)
    client.post("/v1/queues/q/tasks", {"type": "add", "headers": {**most, "one": "more"}}, 422)
    bomb = _bomb(b'{"type":"a","headers":{', b'"%d":""', b"}}")
    assert client.send("POST", "/v1/queues/q/tasks", bomb + b" " * (MAX_BATCH_BYTES - len(bomb))).status == 422
