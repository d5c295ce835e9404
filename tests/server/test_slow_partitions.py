"""A store that takes its time to tell its partitions, as a server behind this one may, holds up nobody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.server.server import ServerSettings
from holdfast.stores.contract import Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from tests.server.setting import Client, running_server


class Slow(PassingStore):
    def __init__(self, path: Path) -> None:
        super().__init__(open_store(f"sqlite:///{path}/tasks.db"))
        self.asked = threading.Event()
        self.may_answer = threading.Event()

    async def partitions(self) -> Sequence[Store]:
        self.asked.set()
        assert await asyncio.to_thread(self.may_answer.wait, 20)
        return await super().partitions()


@pytest.mark.parametrize(
    "call",
    [
        ("GET", "/v1/whoami"),
        ("GET", "/v1/partitions"),
        ("POST", "/v1/store/partitions"),
        ("POST", "/v1/store/counts?partition=0"),
        None,  # the maintenance
    ],
)
def test_others_are_answered_meanwhile(tmp_path: Path, call: tuple[str, str] | None) -> None:
    store = Slow(tmp_path)
    settings = ServerSettings(maintenance=call is None)
    with ThreadPoolExecutor(1) as pool, running_server(lambda: store, settings=settings) as server:
        slow, other = Client(server.port), Client(server.port)
        answer = call and pool.submit(slow.send, *call, {} if call[0] == "POST" else None)
        assert store.asked.wait(10)
        in_the_end = threading.Timer(5, store.may_answer.set)  # so that a failure is one
        in_the_end.start()
        assert other.get("/healthz") == {"status": "ok"}
        assert not store.may_answer.is_set()
        in_the_end.cancel()
        store.may_answer.set()
        assert answer is None or answer.result(10).status == 200
        slow.close()
        other.close()
