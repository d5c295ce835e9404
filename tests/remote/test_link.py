"""Calls on the way to a server: kept connections, repeats, batches, event loops, processes."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from holdfast.core.fairness import QueueShare
from holdfast.core.task import Hold, NewTask
from holdfast.stores.contract import Reserve, Reserved, Store
from holdfast.stores.open import open_store
from tests.remote.calling import url_of, with_store
from tests.remote.scripted import Peer, always, scripted
from tests.support import free_port

RESERVE = Reserve(
    claim_id="c" * 32, worker_id="w", shares=[QueueShare("default", 5)], max_tasks=5, lease_ms=30_000, fresh=True
)
NOTHING_RESERVED = b'{"tasks": [], "verdicts": []}'


def test_calls_share_a_connection_and_carry_the_token() -> None:
    async def use(store: Store) -> None:
        for _ in range(3):
            assert await store.counts() == []

    with scripted(always(b"[]")) as server:
        with_store(url_of(server, "/some/where/"), use)
        assert [asked.connection for asked in server.requests] == [0, 0, 0]
        asked = server.requests[0]
        assert asked.line == "POST /some/where/v1/store/counts HTTP/1.1"
        assert asked.headers["authorization"] == "Bearer hf_id_CANARY"
        assert asked.headers["host"] == f"127.0.0.1:{server.port}"
        assert asked.headers["content-type"] == "application/json"


def test_calls_at_once_have_a_connection_each() -> None:
    async def use(store: Store) -> None:
        await asyncio.gather(*(store.counts() for _ in range(5)))

    everybody_is_there = threading.Barrier(5)

    def script(peer: Peer) -> None:
        peer.asked()
        everybody_is_there.wait(10)
        peer.answer(b"[]")

    with scripted(script) as server:
        with_store(url_of(server), use)
        assert {asked.connection for asked in server.requests} == {0, 1, 2, 3, 4}


def test_a_connection_that_was_closed_while_idle_is_replaced_without_a_pause() -> None:
    closed = threading.Event()

    def script(peer: Peer) -> None:
        peer.asked()
        peer.answer(b"[]")
        if peer.number == 0:
            closed.set()
            return
        peer.client_has_gone()

    async def use(store: Store) -> None:
        await store.counts()
        closed.wait(10)
        await store.counts()

    with scripted(script) as server:
        with_store(url_of(server), use)
        assert [asked.connection for asked in server.requests][-1] == 1


def test_a_request_that_a_kept_connection_swallows_is_repeated_on_a_new_one() -> None:
    """The server closes the connection when the request is on its way already: nobody knows what has become of it."""

    def script(peer: Peer) -> None:
        peer.asked()
        if peer.number == 0:
            peer.answer(NOTHING_RESERVED)
            peer.asked()
            return  # without an answer
        peer.answer(NOTHING_RESERVED)

    async def use(store: Store) -> None:
        for _ in range(2):
            assert await store.reserve(RESERVE) == Reserved([], [])

    with scripted(script) as server:
        with_store(url_of(server), use)
        assert [asked.connection for asked in server.requests] == [0, 0, 1]
        assert [asked.json["request"]["fresh"] for asked in server.requests] == [True, True, False]


def test_a_server_that_starts_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    port, refused, connect = free_port(), asyncio.Semaphore(0), asyncio.open_connection

    async def counted(*where: Any, **how: Any) -> Any:
        try:
            return await connect(*where, **how)
        except ConnectionRefusedError:
            refused.release()
            raise

    async def use(store: Store) -> None:
        asked = asyncio.create_task(store.reserve(RESERVE))
        for _ in range(3):
            await refused.acquire()
        server = await asyncio.start_server(answer, "127.0.0.1", port)
        async with server:
            assert await asked == Reserved([], [])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/store/reserve ")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(NOTHING_RESERVED), NOTHING_RESERVED))
        await writer.drain()
        writer.close()

    monkeypatch.setattr(asyncio, "open_connection", counted)
    with_store(f"http://127.0.0.1:{port}?deadline=30s", use)


def test_large_batches_are_sent_in_parts() -> None:
    def script(peer: Peer) -> None:
        while True:
            asked = peer.asked()
            tasks = asked.json["tasks"]
            answers = ",".join(f'{{"task_id": "{task["task_id"]}"}}' for task in tasks)
            peer.answer(f"[{answers}]".encode())

    tasks = [NewTask(task_id=f"{n:032x}", type="t", queue="q", payload=b"x" * 1_000_000) for n in range(20)]
    with scripted(script) as server:
        answers = with_store(url_of(server), lambda store: store.enqueue(tasks))
        assert [answer.task_id for answer in answers] == [task.task_id for task in tasks]
        sizes = [len(asked.json["tasks"]) for asked in server.requests]
        assert len(sizes) > 1
        assert sum(sizes) == 20
        assert max(len(asked.body) for asked in server.requests) < 9_000_000


def test_large_reports_and_settlements_are_sent_in_parts() -> None:
    holds = [Hold(f"{n:032x}", "0.1.c", b"x" * 3_000_000) for n in range(4)]

    def script(peer: Peer) -> None:
        while True:
            asked = peer.asked()
            peer.answer(b"[" + b",".join([b'{"held": true}'] * len(asked.json["holds"])) + b"]")

    with scripted(script) as server:
        answers = with_store(url_of(server), lambda store: store.extend(holds, 30_000))
        assert [answer.held for answer in answers] == [True] * 4
        assert len(server.requests) == 2


def test_every_event_loop_and_thread_has_connections_of_its_own() -> None:
    with scripted(always(b"[]")) as server:
        store = open_store(url_of(server))

        async def use() -> None:
            assert await store.counts() == []

        asyncio.run(use())
        thread = threading.Thread(target=asyncio.run, args=(use(),))
        thread.start()
        thread.join()
        asyncio.run(use())
        assert [asked.connection for asked in server.requests] == [0, 1, 2]
        asyncio.run(store.close())


def test_a_forked_process_has_connections_of_its_own() -> None:
    async def use(store: Store) -> None:
        assert await store.counts() == []
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if asyncio.new_event_loop().run_until_complete(_counts_elsewhere(store)) else 2
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert await store.counts() == []

    with scripted(always(b"[]")) as server:
        with_store(url_of(server), use)
        assert [asked.connection for asked in server.requests] == [0, 1, 0]


async def _counts_elsewhere(store: Store) -> bool:
    return await store.counts() == []


def test_the_event_loop_may_be_that_of_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def use() -> None:
        store = open_store(url_of(server))
        assert [await store.counts(), await store.counts()] == [[], []]
        await store.close()

    with scripted(always(b"[]")) as server:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(use())
        assert [asked.connection for asked in server.requests] == [0, 0]
