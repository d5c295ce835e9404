"""Several processes on one file: one task a request, nothing lost by a kill, no damage."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import apsw

from holdfast.core.task import State
from holdfast.stores.contract import Query
from holdfast.stores.open import open_store
from tests.support import environment, eventually

PREAMBLE = """
import asyncio, os, sys
from holdfast.clock import SystemClock
from holdfast.core import lifecycle
from holdfast.core.fairness import QueueShare
from holdfast.core.ids import IdSource
from holdfast.core.task import NewTask
from holdfast.stores.contract import Reserve
from holdfast.stores.open import open_store
ids = IdSource(SystemClock().now_ms, os.urandom)
store = open_store(sys.argv[1])

def task(**more):
    return NewTask(task_id=ids.task_id(), type="noop", queue="default", payload=b"{}", **more)

def request(n):
    return Reserve(claim_id=ids.claim_id(), worker_id=str(os.getpid()), shares=[QueueShare("default", n)], max_tasks=n, lease_ms=60_000)
"""  # noqa: E501


def start(url: str, script: str) -> subprocess.Popen[str]:
    code = PREAMBLE + textwrap.dedent(script)
    return subprocess.Popen(
        [sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True, env=environment(), bufsize=1
    )


def outputs(processes: list[subprocess.Popen[str]]) -> list[str]:
    texts = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return texts


def depths(url: str) -> dict[State, int]:
    async def read() -> dict[State, int]:
        store = open_store(url)
        counts = await store.counts()
        await store.close()
        return counts[0].states if counts else {}

    return asyncio.run(read())


def test_twenty_processes_with_one_request_id_make_one_task(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/holdfast.db"
    script = """
        (answer,) = asyncio.run(store.enqueue([task(request_id="order-42")]))
        print(answer.task_id, answer.created)
    """
    answers = [text.split() for text in outputs([start(url, script) for _ in range(20)])]
    assert len({task_id for task_id, _ in answers}) == 1
    assert sorted(created for _, created in answers) == ["False"] * 19 + ["True"]
    assert depths(url) == {State.READY: 1}


def test_what_was_acknowledged_before_a_kill_is_there_after_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/holdfast.db"
    process = start(
        url,
        """
        async def main():
            while True:
                for answer in await store.enqueue([task() for _ in range(3)]):
                    print(answer.task_id, flush=True)
        asyncio.run(main())
        """,
    )
    assert process.stdout is not None
    acknowledged = [process.stdout.readline().strip() for _ in range(300)]
    process.send_signal(signal.SIGKILL)
    acknowledged += [line.strip() for line in process.stdout.read().splitlines() if len(line.strip()) == 32]
    process.wait()
    process.stdout.close()

    async def missing() -> list[str]:
        store = open_store(url)
        found = await store.get(acknowledged)
        await store.close()
        return [task_id for task_id, task in zip(acknowledged, found, strict=True) if task is None]

    assert asyncio.run(missing()) == []


def test_four_processes_hand_out_each_task_once_and_leave_the_file_whole(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/holdfast.db"
    enqueue_and_work = """
        async def main():
            settle, mine = [], []
            for _ in range(60):
                await store.enqueue([task() for _ in range(20)])
                reserved = await store.reserve(request(20), settle)
                assert all(verdict.applied and not verdict.repeated for verdict in reserved.verdicts)
                settle = [lifecycle.ack(each.task_id, each.token) for each in reserved.tasks]
                mine += [each.task_id for each in reserved.tasks]
            await store.apply(settle)
            print(*mine)
        asyncio.run(main())
    """
    claimed = [
        task_id for text in outputs([start(url, enqueue_and_work) for _ in range(4)]) for task_id in text.split()
    ]
    assert len(claimed) == len(set(claimed)) == 4 * 60 * 20
    assert depths(url) == {State.SUCCEEDED: len(claimed)}
    connection = apsw.Connection(str(tmp_path / "holdfast.db"))
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_forked_child_works_on_a_connection_of_its_own(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/holdfast.db"
    (text,) = outputs(
        [
            start(
                url,
                """
                asyncio.run(store.enqueue([task()]))
                child = os.fork()
                asyncio.run(store.enqueue([task()]))
                if not child:
                    os._exit(0)
                _, status = os.waitpid(child, 0)
                asyncio.run(store.enqueue([task()]))
                print(status)
                """,
            )
        ]
    )
    assert text.strip() == "0"
    assert depths(url) == {State.READY: 4}


def test_an_enqueue_wakes_one_waiter_of_another_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/holdfast.db"
    waiter = """
        async def main():
            await store.wait(["default"], 1)
            print("listening", flush=True)
            while not await store.wait(["default"], 60_000):
                pass
        asyncio.run(main())
    """
    waiters = [start(url, waiter) for _ in range(2)]
    for process in waiters:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"

    def awake() -> int:
        return sum(process.poll() is not None for process in waiters)

    outputs([start(url, "asyncio.run(store.enqueue([task()]))")])
    eventually(awake)
    outputs([start(url, "asyncio.run(store.counts())")])  # As long as another process takes to start and end.
    assert awake() == 1
    outputs([start(url, "asyncio.run(store.enqueue([task()]))")])
    eventually(lambda: awake() == 2)
    outputs(waiters)


def test_a_store_that_is_closed_says_so(tmp_path: Path) -> None:
    async def scenario() -> str:
        store = open_store(f"sqlite:///{tmp_path}/holdfast.db")
        await store.find(Query())
        await store.close()
        try:
            await store.find(Query())
        except Exception as error:  # noqa: BLE001
            return str(error)
        return ""

    assert "closed" in asyncio.run(scenario())
    assert not (tmp_path / "holdfast.db-wal").exists()
