"""An app that was used before a fork is safe in parent and child, on every store and under threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.stores.open import open_store
from tests.remote.holdfast_server import holdfast_server
from tests.servers.harness import delete_keys
from tests.servers.postgres_shared import shared_durable_postgres
from tests.servers.shared import shared_cluster, shared_durable_server
from tests.sharded.harness import url_of
from tests.support import environment, run_worker

PREAMBLE = """
import multiprocessing, os, sys, threading
from holdfast import Holdfast

app = Holdfast(sys.argv[1])
acknowledged = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.task
def noop(number: int) -> int:
    return number

def enqueue(number):
    handle = noop.enqueue(number)
    os.write(acknowledged, f"{handle.task_id}\\n".encode())
    return handle

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

"""
#: The parent ends at the fork, as a program does that becomes a daemon.
DAEMON = """
enqueue(0)
if os.fork():
    os._exit(0)  # without a word to the store
enqueue(1)
if os.fork():
    app.close()
    os._exit(0)
for number in range(100):
    assert enqueue(number).status().task_id
"""
#: Forks while threads enqueue; children end in every way that there is.
THREADS = """
first, stop, failures = enqueue(0), threading.Event(), []

def produce():
    try:
        while not stop.is_set():
            enqueue(1)
    except BaseException as error:
        failures.append(error)

def child(number):
    for _ in range(5):
        enqueue(number)
    assert first.status().task_id == first.task_id
    if number % 3 == 0:
        os._exit(0)
    elif number % 3 == 1:
        app.close()
    sys.exit(0)

threads = [threading.Thread(target=produce) for _ in range(3)]
for thread in threads:
    thread.start()
children = []
for number in range(9):
    pid = os.fork()
    if not pid:
        child(number)
    children.append(pid)
    enqueue(2)
codes = [ended(pid) for pid in children]
stop.set()
for thread in threads:
    thread.join()
assert (codes, failures) == ([0] * 9, []), (codes, failures)
"""
POOL = """
def enqueue_one(number):
    return enqueue(number).task_id

enqueue(0)
with multiprocessing.get_context("fork").Pool(2) as pool:
    pool.map(enqueue_one, range(20))
    enqueue(1)
    pool.map(enqueue_one, range(20))
enqueue(2)
"""
#: A task whose processes enqueue, and one whose processes do its steps.
APP = """
import multiprocessing
from holdfast import Holdfast, current
from holdfast.errors import UsageError

app = Holdfast()

@app.task(queue="elsewhere")
def noop(number: int) -> int:
    return number

def enqueue(number):
    return noop.enqueue(number).task_id

@app.task
def spread(count: int) -> list[str]:
    ids = [enqueue(0)]
    pool = multiprocessing.get_context("fork").Pool(2)
    ids += pool.map(enqueue, range(count))
    pool.close()
    pool.join()
    return [*ids, enqueue(0)]

def once(number):
    return current().once(f"{current().task_id}/{number}", lambda: 2 * number)

def write(number):
    try:
        with current().transaction():
            return ""
    except UsageError as error:
        return str(error)

@app.task
def steps(count: int) -> list[int]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(once, range(count))
        (refused,) = set(pool.map(write, range(count)))
    assert "this process was forked by the task" in refused
    return [current().once(f"{current().task_id}/{number}", lambda: -1) for number in range(count)]
"""


@contextmanager
def sqlite(directory: Path) -> Iterator[str]:
    yield f"sqlite:///{directory}/fork.db"


@contextmanager
def sharded(directory: Path) -> Iterator[str]:
    yield url_of(directory)


@contextmanager
def redis(directory: Path) -> Iterator[str]:
    server = shared_durable_server("redis")
    yield f"{server.url}?prefix={directory.name}"
    delete_keys(server, f"*{directory.name}*")


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    servers = shared_cluster("redis")
    yield f"{servers.url}?prefix={directory.name}"
    for server in servers.masters():
        delete_keys(server, f"*{directory.name}*")


@contextmanager
def postgres(directory: Path) -> Iterator[str]:
    yield f"{shared_durable_postgres().url()}?schema=fork_{abs(hash(directory))}"


@contextmanager
def http(directory: Path) -> Iterator[str]:
    with holdfast_server(directory, f"sqlite:///{directory}/server.db") as server:
        yield server.url("work:*", "enqueue:*", "read")


@pytest.fixture(params=[sqlite, sharded, redis, cluster, postgres, http], ids=lambda make: make.__name__)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    make: Callable[[Path], contextmanager[str]] = request.param  # type: ignore[valid-type]
    with ExitStack() as stack:
        yield stack.enter_context(make(tmp_path))


async def _come_and_go(url: str) -> None:
    """What another process does that closes the store: on SQLite, the last one to do so deletes the log."""
    store = open_store(url)
    await store.counts()
    await store.close()


async def _missing(url: str, task_ids: list[str]) -> list[str]:
    store = open_store(url)
    found = [task for first in range(0, len(task_ids), 500) for task in await store.get(task_ids[first : first + 500])]
    await store.close()
    return [task_id for task_id, task in zip(task_ids, found, strict=True) if task is None]


@pytest.mark.parametrize("script", [DAEMON, THREADS, POOL], ids=["daemon", "threads", "pool"])
def test_nothing_is_lost_and_nothing_hangs(url: str, script: str, tmp_path: Path) -> None:
    log = tmp_path / "acknowledged"
    command = [sys.executable, "-W", "ignore", "-c", PREAMBLE + script, url, str(log)]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    with ThreadPoolExecutor(1) as pool:
        errors = pool.submit(process.communicate)  # until the last of its processes has ended
        while not errors.done():
            asyncio.run(_come_and_go(url))
    assert (process.returncode, errors.result()[1]) == (0, "")
    task_ids = log.read_text().split()
    assert len(task_ids) > 40
    assert asyncio.run(_missing(url, task_ids)) == []


def test_processes_of_a_task_enqueue(url: str, tmp_path: Path) -> None:
    (tmp_path / "forking.py").write_text(APP)
    with Holdfast(url) as app, run_worker("forking:app", url, cwd=tmp_path):
        spread = app.task(name="forking.spread")(_spread)
        handles = [spread.enqueue(10) for _ in range(4)]
        ids = [task_id for handle in handles for task_id in handle.result(60)]
    assert len(ids) == len(set(ids)) == 4 * 12
    assert asyncio.run(_missing(url, ids)) == []


def test_processes_of_a_task_do_its_steps_once(url: str, tmp_path: Path) -> None:
    (tmp_path / "forking.py").write_text(APP)
    with Holdfast(url) as app, run_worker("forking:app", url, cwd=tmp_path):
        handle = app.task(name="forking.steps")(_steps).enqueue(6)
        assert handle.result(60) == [0, 2, 4, 6, 8, 10]


def _steps(count: int) -> list[int]:
    raise NotImplementedError(count)


def _spread(count: int) -> list[str]:
    raise NotImplementedError(count)  # run by the worker
