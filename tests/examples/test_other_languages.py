"""The workers in other languages, run against a real server that asks for tokens."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.admin import tokens
from holdfast.clock import SystemClock
from holdfast.core.task import State
from holdfast.maintenance.reaper import Reaper
from holdfast.server.auth import TokenGuard
from holdfast.server.server import Server
from holdfast.stores.contract import MAINTENANCE
from holdfast.stores.open import open_store
from tests.examples.files import check_page
from tests.server.setting import Client, RunningServer
from tests.support import ROOT, environment, eventually, free_port, holdfast_command

QUEUE = "errands"
EXAMPLES = ROOT / "examples"
#: Each is also the first part of the names of its task types.
WORKERS = {
    "node": ["node", str(EXAMPLES / "node-worker" / "worker.mjs")],
    "bash": ["bash", str(EXAMPLES / "bash-worker" / "worker.sh")],
}
NEEDS = {"node": ("node",), "bash": ("bash", "curl")}


class Setting(NamedTuple):
    """A server, an admin at it, and a token that may work on one queue only."""

    url: str
    admin: Client
    token: str
    workers: tuple[subprocess.Popen[bytes], ...] = ()

    def enqueue(self, type_name: str, **fields: Any) -> str:
        return self.admin.enqueue(QUEUE, type=type_name, **fields)

    def task(self, task_id: str) -> Any:
        return self.admin.get(f"/v1/tasks/{task_id}")

    def ended(self, task_id: str) -> Any:
        """The task after its end."""
        task = self.admin.get(f"/v1/tasks/{task_id}?wait=15s")
        assert task["finished_at_ms"] is not None, task
        return task


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    def make_service() -> Server:
        store = open_store(f"sqlite:///{tmp_path}/tasks.db")
        return Server(store, TokenGuard(store))

    server = RunningServer(make_service)
    server.start()

    def token(scope: str) -> str:
        return str(server.call(tokens.create(server.service.store, [scope], now_ms=SystemClock().now_ms())))

    admin = Client(server.port, token("admin"))
    try:
        yield Setting(server.url, admin, token(f"work:{QUEUE}"))
    finally:
        admin.close()
        server.stop()


@pytest.fixture(params=WORKERS)
def language(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    missing = [program for program in NEEDS[name] if shutil.which(program) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    return name


@contextmanager
def working(
    language: str, setting: Setting, log: Path, lease: str = "1", grace: str = "10"
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker with a short lease, in a session of its own; nothing of it outlives the block."""
    env = {
        "HOLDFAST_TOKEN": setting.token,
        "HOLDFAST_QUEUE": QUEUE,
        "HOLDFAST_LEASE": lease,
        "HOLDFAST_GRACE": grace,
    }
    with log.open("wb") as sink:
        process = subprocess.Popen(
            WORKERS[language],
            env=environment(setting.url, env),
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    except BaseException as error:
        error.add_note(f"output of the worker:\n{log.read_text(errors='replace')}")
        raise
    finally:
        process.terminate()
        try:
            process.wait(15)
        finally:
            process.kill()
            process.wait()


def test_arguments_are_found_however_they_are_written(language: str, setting: Setting, tmp_path: Path) -> None:
    arguments = json.dumps({"other": {"name": "EVIL"}, "list": [{"name": "EVIL"}], "name": "you"}, indent=2)
    headers = json.dumps({"a": "1", "headers": "EVIL", "name": "EVIL", "arguments": '{"name": "EVIL"}'})
    body = f'{{"type": "{language}.greet", "arguments": {arguments}, "headers": {headers}}}'
    task_id = setting.admin.send("POST", f"/v1/queues/{QUEUE}/tasks", body.encode()).json["task_id"]
    with working(language, setting, tmp_path / "worker.txt"):
        assert setting.ended(task_id)["result"] == "hello you"


def test_a_worker_in_another_language_runs_fails_extends_and_stops(
    language: str, setting: Setting, tmp_path: Path
) -> None:
    twice = {"max_attempts": 2, "base": "100ms"}
    greeting = setting.enqueue(f"{language}.greet", arguments={"name": 'Zoë "Z" \\ 日本'})
    failing = setting.enqueue(f"{language}.fail", retry=twice)
    log = tmp_path / "worker.txt"
    with working(language, setting, log, lease="3") as worker:
        assert setting.ended(greeting)["result"] == 'hello Zoë "Z" \\ 日本'

        dead = setting.ended(failing)
        assert (dead["state"], dead["attempt"]) == ("dead_lettered", 2)
        assert [run["error"]["message"].strip() for run in dead["history"]] == ['this "never" works'] * 2

        longer_than_a_lease = setting.ended(setting.enqueue(f"{language}.nap", arguments={"seconds": 3.6}))
        assert (longer_than_a_lease["result"], longer_than_a_lease["deliveries"]) == ("rested", 1)

        cancelled = setting.enqueue(f"{language}.nap", arguments={"seconds": 60})
        eventually(lambda: setting.task(cancelled)["state"] == "claimed", what="it runs")
        setting.admin.post(f"/v1/tasks/{cancelled}/cancel")
        assert setting.ended(cancelled)["state"] == "cancelled"

        last = setting.enqueue(f"{language}.nap", arguments={"seconds": 1})
        eventually(lambda: setting.task(last)["state"] == "claimed", what="it runs")
        worker.terminate()
        assert worker.wait(15) == 0
        assert setting.task(last)["result"] == "rested"
    assert setting.token not in log.read_text()


def test_a_worker_that_waits_ends_when_it_is_told_to(language: str, setting: Setting, tmp_path: Path) -> None:
    with working(language, setting, tmp_path / "worker.txt") as worker:
        setting.ended(setting.enqueue(f"{language}.greet", arguments={"name": "you"}))
        worker.terminate()
        # What comes while its last poll goes on is either done or left alone.
        late = setting.enqueue(f"{language}.greet", arguments={"name": "them"})
        assert worker.wait(15) == 0
        assert setting.task(late)["state"] in {"ready", "succeeded"}


def test_a_worker_whose_token_is_refused_says_so_and_ends(language: str, setting: Setting, tmp_path: Path) -> None:
    log = tmp_path / "worker.txt"
    with working(language, setting._replace(token="hf_nonsense"), log) as worker:
        assert worker.wait(15) == 1
    assert '"status":401' in log.read_text()
    assert "hf_nonsense" not in log.read_text()


def test_workers_keep_what_they_run_while_the_server_is_killed_and_are_listed(tmp_path: Path) -> None:
    with killed_servers(tmp_path, lease="20") as (setting, kill_and_restart):
        eventually(lambda: len(setting.admin.get("/v1/workers")["workers"]) == len(installed()), 15, "they are listed")
        naps = [setting.enqueue(f"{name}.nap", arguments={"seconds": 1}) for name in installed()]
        eventually(lambda: all(setting.task(nap)["state"] == "claimed" for nap in naps), 15, "they run")
        later = kill_and_restart([])
        for name in installed():
            greeting = later.enqueue(f"{name}.greet", arguments={"name": "you"})
            assert later.ended(greeting)["result"] == "hello you"
        assert [(later.task(nap)["state"], later.task(nap)["deliveries"]) for nap in naps] == [
            ("succeeded", 1) for _ in naps
        ]


def test_workers_let_go_of_what_they_could_not_extend(tmp_path: Path) -> None:
    with killed_servers(tmp_path, lease="1") as (setting, kill_and_restart):
        # One attempt: when its lease has expired, a worker is not given it again. On a busy machine that may happen
        # before the server is killed, so what counts is that each has begun.
        once = {"max_attempts": 1}
        naps = [setting.enqueue(f"{name}.nap", arguments={"seconds": 60}, retry=once) for name in installed()]
        eventually(lambda: all(setting.task(nap)["deliveries"] == 1 for nap in naps), 15, "they run")
        later = kill_and_restart(naps)
        # None of them naps any longer.
        for name in installed():
            greeting = later.enqueue(f"{name}.greet", arguments={"name": "you"})
            assert later.ended(greeting)["result"] == "hello you"


def test_a_worker_hands_back_what_it_cannot_finish(language: str, setting: Setting, tmp_path: Path) -> None:
    # A lease that a busy machine does not keep it from renewing: the claim must be its own to hand it back.
    with working(language, setting, tmp_path / "worker.txt", lease="60", grace="0.2") as worker:
        nap = setting.enqueue(f"{language}.nap", arguments={"seconds": 60})
        eventually(lambda: setting.task(nap)["state"] == "claimed", 15, "it runs")
        worker.terminate()
        assert worker.wait(15) == 0
        task = setting.task(nap)
        assert (task["state"], [run["outcome"] for run in task["history"]]) == ("ready", ["released"])


def installed() -> list[str]:
    return [name for name, programs in NEEDS.items() if all(map(shutil.which, programs))]


@contextmanager
def killed_servers(
    directory: Path, *, lease: str, grace: str = "10"
) -> Iterator[tuple[Setting, Callable[[list[str]], Setting]]]:
    """A worker of every language at a server, and what kills it and starts another when these claims are gone."""
    if not installed():
        pytest.skip("none of their programs is installed")
    url, port = f"sqlite:///{directory}/tasks.db", free_port()
    admin, token = asyncio.run(new_tokens(url))
    with ExitStack() as stack:
        server = stack.enter_context(holdfast_server(url, port))
        setting = Setting(f"http://127.0.0.1:{port}", stack.enter_context(closing(Client(port, admin))), token)
        workers = [
            stack.enter_context(working(name, setting, directory / f"{name}.txt", lease, grace)) for name in installed()
        ]

        def kill_and_restart(outlived: list[str]) -> Setting:
            server.kill()
            server.wait()
            eventually(lambda: asyncio.run(are_taken_away(url, outlived)), 30, "their claims are taken away")
            stack.enter_context(holdfast_server(url, port))
            return setting._replace(admin=stack.enter_context(closing(Client(port, admin))))

        yield setting._replace(workers=tuple(workers)), kill_and_restart


def test_a_worker_with_a_wrong_address_says_so_and_ends(language: str, setting: Setting, tmp_path: Path) -> None:
    log = tmp_path / "worker.txt"
    with working(language, setting._replace(url=f"{setting.url}/nowhere"), log) as worker:
        assert worker.wait(15) == 1
    assert '"status":404' in log.read_text()


async def are_taken_away(url: str, task_ids: list[str]) -> bool:
    """Whether none of these tasks is claimed any longer: an expired claim may be renewed until it is taken away."""
    store = open_store(url)
    try:
        await Reaper().run_once(store, (await store.lead(MAINTENANCE, None, 0)).epoch)
        return all(task is None or task.state is not State.CLAIMED for task in await store.get(task_ids))
    finally:
        await store.close()


async def new_tokens(url: str) -> tuple[str, str]:
    """One that may do everything, one that may work on the queue."""
    store = open_store(url)
    try:
        now_ms = SystemClock().now_ms()
        made = [await tokens.create(store, [scope], now_ms=now_ms) for scope in ("admin", f"work:{QUEUE}")]
    finally:
        await store.close()
    return str(made[0]), str(made[1])


@contextmanager
def holdfast_server(url: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """`holdfast server` on this port, from its first answer on."""
    words = holdfast_command("server", "--port", str(port), "--log-level", "error")
    process = subprocess.Popen(words, env=environment(url))
    try:
        eventually(lambda: process.poll() is not None or answers(port), 30, "the server answers")
        assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("name", WORKERS)
def test_the_workers_are_short(name: str) -> None:
    assert len(Path(WORKERS[name][-1]).read_text(encoding="utf-8").splitlines()) < 70


@pytest.mark.parametrize("name", WORKERS)
def test_every_holdfast_command_of_their_pages_exists(name: str) -> None:
    assert check_page(EXAMPLES / f"{name}-worker" / "README.md") == 3
