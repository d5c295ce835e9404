"""`holdfast server` as a process, and what a server does besides answering."""

from __future__ import annotations

import asyncio
import errno
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from holdfast.server.process import LoopErrors
from holdfast.server.server import ServerSettings
from tests.remote.holdfast_server import holdfast_server
from tests.server.setting import Client, sqlite_server
from tests.support import eventually, run_holdfast


def test_a_server_that_is_told_to_stop_answers_those_who_wait_and_leaves(tmp_path: Path) -> None:
    with holdfast_server(tmp_path, f"sqlite:///{tmp_path}/tasks.db") as server, ThreadPoolExecutor(4) as pool:
        token = server.token("admin")
        clients = [Client(server.port, token) for _ in range(4)]
        polls = [pool.submit(client.reserve, wait="20s") for client in clients[:3]]
        look = clients[3]
        eventually(lambda: look.post("/v1/store/counts") == [] and all(not poll.done() for poll in polls))
        server.stop()
        assert [poll.result(5) for poll in polls] == [[], [], []]
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", server.port))
        assert "Traceback" not in server.log()
        for client in clients:
            client.close()


def test_connections_are_limited_by_the_system_and_too_many_do_no_harm(tmp_path: Path) -> None:
    limits = ["sh", "-c", 'ulimit -Sn 64 && ulimit -Hn 256 && exec "$@"', "sh"]
    url = f"sqlite:///{tmp_path}/tasks.db"
    with holdfast_server(tmp_path, url, prefix=limits) as server, ExitStack() as stack:
        clients = [stack.enter_context(closing(Client(server.port))) for _ in range(80)]
        for client in clients:  # more than the limit was when it started
            client.get("/healthz")
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 10))
        clients[0].get("/healthz")
        stack.close()
        eventually(lambda: _answers(server.port), 20, "there is room again")
        assert "Traceback" not in server.log()


def _answers(port: int) -> bool:
    with closing(Client(port)) as client:
        try:
            client.get("/healthz")
        except OSError:
            return False
        return True


def test_what_an_event_loop_complains_of_is_told_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        loop, handler = asyncio.get_running_loop(), LoopErrors()
        for _ in range(2_048):  # as asyncio does, once a second
            handler(loop, {"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files")})
        handler(loop, {"message": "something else"})

    asyncio.run(scenario())
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "no file descriptor is left for another connection",
        "something else",
    ]


def test_an_address_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_holdfast("server", "--port", str(port), url=f"sqlite:///{tmp_path}/tasks.db")
    assert done.returncode == 2
    assert done.stderr == (
        f"holdfast: cannot listen on 127.0.0.1:{port}: Address already in use; name another --host or --port\n"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--port", "70000"], "--port"),
        (["--host", "nowhere.invalid"], "cannot listen on"),
        (["--url", "mysql://x"], "not a store URL"),
        (["--colour", "red"], "--colour"),
    ],
)
def test_wrong_options_are_one_line(tmp_path: Path, options: list[str], words: str) -> None:
    url = [] if "--url" in options else ["--url", f"sqlite:///{tmp_path}/tasks.db"]
    done = run_holdfast("server", "--port", "0", *url, *options)
    assert done.returncode == 2
    assert done.stderr.startswith("holdfast: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_server_looks_after_the_store(tmp_path: Path) -> None:
    with sqlite_server(tmp_path) as server:
        client = Client(server.port)
        task_id = client.enqueue(delay="50ms")
        (task,) = client.reserve(wait="20s")
        assert task["task_id"] == task_id
        client.close()


def test_a_server_without_upkeep_leaves_the_store_alone(tmp_path: Path) -> None:
    with sqlite_server(tmp_path, ServerSettings(maintenance=False)) as server:
        client = Client(server.port)
        assert client.get("/v1/partitions")["partitions"][0]["owner"] is None
        client.close()
    with sqlite_server(tmp_path) as server:
        client = Client(server.port)
        eventually(lambda: client.get("/v1/partitions")["partitions"][0]["owner"] == server.service.name)
        client.close()
