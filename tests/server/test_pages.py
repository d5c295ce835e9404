"""Large tasks by the hundred: answers have an end, and go on with a cursor."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.task import State, Task
from holdfast.server.budgets import PART_BYTES
from holdfast.server.operator_requests import DeadQuery, TasksQuery
from holdfast.server.rendering import STEP, find_page, shown
from holdfast.server.server import ServerSettings
from holdfast.stores.contract import Page, Query, Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from holdfast.stores.remote.limits import MAX_PAGE_BYTES
from holdfast.stores.sharded import pages as sharded_pages
from tests.remote.calling import with_store
from tests.server.security.gate import open_gate
from tests.server.setting import Client, RunningServer, running_server
from tests.support import eventually

_LARGE = {"x": "y" * 250_000}
#: Two pages and a bit.
_SEVERAL = 2 * MAX_PAGE_BYTES // 250_000 + 5


def _pages(client: Client, path: str, limit: int = 1_000) -> list[list[str]]:
    """The task_ids of each page; none of them is much longer than a page may be."""
    pages, cursor = [], ""
    while True:
        answer = client.send("GET", f"{path}?limit={limit}{cursor and f'&cursor={cursor}'}")
        assert len(answer.body) < 1.3 * MAX_PAGE_BYTES
        pages.append([task["task_id"] for task in answer.json["tasks"]])
        if answer.json["cursor"] is None:
            return pages
        cursor = answer.json["cursor"]


def _enqueue(client: Client, number: int, arguments: dict[str, Any], **fields: Any) -> list[str]:
    """The ids of new tasks, the newest first."""
    tasks = [{"type": "add", "arguments": arguments, **fields}] * number
    return [task["task_id"] for task in client.post("/v1/queues/q/tasks", {"tasks": tasks})["tasks"]][::-1]


def test_a_page_of_large_tasks_ends_early_and_the_next_one_goes_on(client: Client) -> None:
    task_ids = _enqueue(client, _SEVERAL, _LARGE)
    pages = _pages(client, "/v1/tasks")
    assert len(pages) == 3
    assert [task_id for page in pages for task_id in page] == task_ids


def test_a_page_of_small_tasks_has_all_that_were_asked_for(client: Client) -> None:
    task_ids = _enqueue(client, 2 * STEP + 50, {})
    assert _pages(client, "/v1/tasks", 2 * STEP + 20) == [task_ids[: 2 * STEP + 20], task_ids[2 * STEP + 20 :]]
    assert _pages(client, "/v1/tasks") == [task_ids]


def test_dead_letters_with_long_errors_come_in_several_pages(client: Client) -> None:
    number = MAX_PAGE_BYTES // 30_000 + 5
    task_ids = _enqueue(client, number, {}, retry={"max_attempts": 1})
    error = {"type": "builtins.ValueError", "message": "m" * 15_000, "traceback": "t" * 15_000}
    claims = client.reserve("q", max_tasks=number)
    changes = [
        {"event": "fail", "task_id": claim["task_id"], "token": claim["token"], "error": error} for claim in claims
    ]
    client.post("/v1/settle", {"changes": changes})
    pages = _pages(client, "/v1/dead-letters")
    assert len(pages) == 2
    assert [task_id for page in pages for task_id in page] == task_ids


def test_the_store_contract_finds_large_tasks_page_by_page(client: Client) -> None:
    task_ids = _enqueue(client, _SEVERAL, _LARGE)
    pages: list[list[str]] = []
    cursor = None
    while not pages or cursor is not None:
        page = client.post("/v1/store/find", {"query": {"limit": 1_000, "cursor": cursor}})
        pages.append([task["task_id"] for task in page["tasks"]])
        cursor = page.get("cursor")
    assert len(pages) == 3
    assert [task_id for page in pages for task_id in page] == task_ids


def test_the_store_contract_gets_as_many_as_fit_into_a_page(client: Client) -> None:
    task_ids = _enqueue(client, _SEVERAL, _LARGE)
    left, answers = ["0" * 32, "x", *task_ids], []
    while left:
        answer = client.send("POST", "/v1/store/get", {"task_ids": left})
        assert len(answer.body) < 1.5 * MAX_PAGE_BYTES  # payloads are in base64
        answers.append([task and task["task_id"] for task in answer.json])
        left = left[len(answers[-1]) :]
    assert len(answers) == 3
    assert [task_id for answer in answers for task_id in answer] == [None, None, *task_ids]


def test_the_same_task_is_not_got_twice_in_one_answer(client: Client) -> None:
    task_id = client.enqueue("q", arguments=_LARGE)
    client.post("/v1/store/get", {"task_ids": [task_id] * 1_000}, 422)


def test_a_remote_store_gets_all_that_are_asked_for_however_large(server: RunningServer, client: Client) -> None:
    task_ids = _enqueue(client, _SEVERAL, _LARGE)
    asked = [*task_ids, "0" * 32, task_ids[0], task_ids[0]]

    async def get(store: Store) -> list[Task | None]:
        return await store.get(asked)

    found = with_store(server.url, get)
    assert [task and task.task_id for task in found] == [*task_ids, None, task_ids[0], task_ids[0]]


def test_answers_take_room_and_give_it_back_when_they_are_sent(server: RunningServer, client: Client) -> None:
    task_ids = _enqueue(client, 20, _LARGE)
    asked = json.dumps({"task_ids": task_ids}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        head = f"POST /v1/store/get HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(asked)}\r\n"
        slow.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + asked)
        eventually(lambda: 0 < server.service.answer_room.taken < 2 * MAX_PAGE_BYTES, 10, "its answer is there")
        assert client.get(f"/v1/tasks/{task_ids[0]}")["task_id"] == task_ids[0]
        assert server.service.answer_room.taken > MAX_PAGE_BYTES
    eventually(lambda: server.service.answer_room.taken == 0, 10, "the room of a client that has gone is free")


def test_records_of_discarded_tasks_end_with_a_page(client: Client) -> None:
    number = MAX_PAGE_BYTES // 250_000 + 10
    task_ids = [client.dead_letter(arguments=_LARGE) for _ in range(number)]
    changes = [{"event": "discard", "task_id": task_id, "reason": "old"} for task_id in task_ids]
    client.post("/v1/settle", {"changes": changes})
    shown: list[str] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        answer = client.send("POST", "/v1/store/documents", {"kind": "discard", "cursor": cursor})
        assert len(answer.body) < 1.5 * MAX_PAGE_BYTES
        shown += [document["name"] for document in answer.json["documents"]]
        cursor, pages = answer.json["cursor"], pages + 1
    assert pages > 1
    assert sorted(shown) == sorted(task_ids)


class _Counting(PassingStore):
    """Knows how many tasks were asked for at once."""

    most = 0

    async def get(self, task_ids: Sequence[str]) -> list[Task | None]:
        self.most = max(self.most, len(task_ids))
        return await self.inner.get(task_ids)


def test_a_store_is_not_asked_for_a_thousand_histories_at_once(tmp_path: Path) -> None:
    """They may be long, and all of them would be in memory."""
    store = _Counting(open_store(f"sqlite:///{tmp_path}/tasks.db"))
    with running_server(lambda: store, settings=ServerSettings(maintenance=False)) as server:
        client = Client(server.port)
        task_ids = _enqueue(client, 2 * STEP + 50, {}, retry={"max_attempts": 1})
        claims = client.reserve("q", max_tasks=len(task_ids))
        error = {"type": "builtins.ValueError", "message": "m"}
        fail = {"event": "fail", "error": error}
        changes = [fail | {"task_id": claim["task_id"], "token": claim["token"]} for claim in claims]
        client.post("/v1/settle", {"changes": changes})
        store.most = 0
        found = client.post("/v1/store/get", {"task_ids": task_ids})
        assert [task["task_id"] for task in found] == task_ids
        (group,) = client.get("/v1/dead-letters/by-error")["groups"]
        assert group["count"] == len(task_ids)
        assert _pages(client, "/v1/dead-letters") == [task_ids]
        client.close()
    assert 0 < store.most <= STEP


def test_large_tasks_are_shown_without_their_secrets(tmp_path: Path) -> None:
    with open_gate(tmp_path) as gate:
        _enqueue(gate.client("admin"), 20, {**_LARGE, "password": "open sesame"})
        reader = gate.client("read")
        task_ids = [task_id for page in _pages(reader, "/v1/tasks") for task_id in page]
        assert len(task_ids) == 20
        for answer in (
            reader.send("GET", "/v1/tasks"),
            reader.send("POST", "/v1/store/get", {"task_ids": task_ids}),
            reader.send("POST", "/v1/store/find", {"query": {}}),
        ):
            assert b"sesame" not in answer.body
            assert len(answer.body) > MAX_PAGE_BYTES


def test_the_cursor_of_a_store_of_many_partitions_is_taken() -> None:
    cursor = sharded_pages._write(["9" * 18] * 256)
    assert msgspec.convert({"cursor": cursor}, TasksQuery).cursor == cursor
    assert msgspec.convert({"cursor": cursor}, DeadQuery).cursor == cursor


def _task(number: int, size: int) -> Task:
    return Task(
        task_id=f"{number:032x}",
        type="add",
        queue="q",
        state=State.READY,
        priority=0,
        attempt=0,
        deliveries=0,
        created_at_ms=0,
        run_at_ms=0,
        payload=b"x" * size,
    )


@pytest.mark.parametrize("sizes", [[MAX_PAGE_BYTES * 2] * 3, [10, MAX_PAGE_BYTES * 2, 10], [10] * 250, []])
def test_pages_meet_every_task_once_whatever_their_sizes(sizes: list[int]) -> None:
    tasks = [_task(number, size) for number, size in enumerate(sizes)]

    async def find(query: Query) -> Page:
        start = int(query.cursor or 0)
        end = start + query.limit
        after = [str(number + 1) for number in range(len(tasks))]
        return Page(tasks[start:end], str(end) if end < len(tasks) else None, after[start:end])

    async def walk() -> list[Task]:
        met: list[Task] = []
        query = Query(limit=1_000)
        while True:
            page = await find_page(find, query)
            met += page.tasks
            if page.cursor is None:
                return met
            assert page.tasks
            query = replace(query, cursor=page.cursor)

    assert asyncio.run(walk()) == tasks


def test_others_have_their_turn_while_many_tasks_are_shown() -> None:
    async def watched() -> list[int]:
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(turn)

        turn()
        return await shown([_task(0, PART_BYTES // 2)] * 20, lambda _: turns)

    seen = asyncio.run(watched())
    assert len(set(seen)) >= 10


def test_a_large_task_is_shown_beside_the_event_loop() -> None:
    tasks = [_task(0, PART_BYTES), _task(1, 10)]
    threads = asyncio.run(shown(tasks, lambda _: threading.current_thread()))
    assert [thread is threading.current_thread() for thread in threads] == [False, True]


@pytest.mark.parametrize("path", ["/v1/queues/q/tasks", "/v1/store/enqueue"])
def test_others_have_their_turn_while_a_batch_is_checked(
    server: RunningServer, client: Client, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    turns, seen, over = 0, [], False

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not over:
            server.loop.call_soon(turn)

    def check(*_: object) -> None:
        seen.append(turns)

    monkeypatch.setattr("holdfast.core.payload.check", check)
    server.loop.call_soon_threadsafe(turn)
    try:
        if path.endswith("tasks"):
            tasks: list[dict[str, Any]] = [{"type": "add", "arguments": {"x": "y" * PART_BYTES}}] * 10
        else:
            payload = "A" * 4 * (PART_BYTES // 3 + 1)
            tasks = [{"task_id": f"{n:032x}", "type": "add", "queue": "q", "payload": payload} for n in range(10)]
        client.post(path, {"tasks": tasks})
    finally:
        over = True
    assert len(set(seen)) == 10
