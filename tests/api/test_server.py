"""`holdfast server` as a process, and what a gateway does besides answering."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.api.gateway import GatewaySettings
from tests.api.setting import Client, sqlite_server
from tests.remote.gateway_process import running_gateway
from tests.support import eventually, run_holdfast


def test_a_server_that_is_told_to_stop_answers_those_who_wait_and_leaves(tmp_path: Path) -> None:
    with running_gateway(tmp_path, f"sqlite:///{tmp_path}/tasks.db") as gateway, ThreadPoolExecutor(4) as pool:
        token = gateway.token("admin")
        clients = [Client(gateway.port, token) for _ in range(4)]
        polls = [pool.submit(client.reserve, wait="20s") for client in clients[:3]]
        look = clients[3]
        eventually(lambda: look.post("/v1/store/counts") == [] and all(not poll.done() for poll in polls))
        gateway.stop()
        assert [poll.result(5) for poll in polls] == [[], [], []]
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", gateway.port))
        assert "Traceback" not in gateway.log()
        for client in clients:
            client.close()


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
        (["--host", "no such host"], "cannot listen on"),
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


def test_the_gateway_looks_after_the_store(tmp_path: Path) -> None:
    with sqlite_server(tmp_path) as server:
        client = Client(server.port)
        task_id = client.enqueue(delay="50ms")
        (task,) = client.reserve(wait="20s")
        assert task["task_id"] == task_id
        client.close()


def test_a_gateway_without_upkeep_leaves_the_store_alone(tmp_path: Path) -> None:
    with sqlite_server(tmp_path, GatewaySettings(upkeep=False)) as server:
        client = Client(server.port)
        assert client.get("/v1/partitions")["partitions"][0]["owner"] is None
        client.close()
    with sqlite_server(tmp_path) as server:
        client = Client(server.port)
        eventually(lambda: client.get("/v1/partitions")["partitions"][0]["owner"] == server.gateway.name)
        client.close()
