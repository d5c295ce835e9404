"""The servers that tests are run on do what tests rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as NoAnswer

import redis
from tests.servers.flavours import DURABLE, Flavour
from tests.servers.redis_server import RedisServer
from tests.support import ROOT, alive, environment, eventually


def test_server_is_what_its_name_says(flavour: Flavour) -> None:
    with RedisServer(flavour) as server:
        info = server.info("server")
        assert info.get("server_name", "redis") == flavour
        assert info["redis_version" if flavour == "redis" else "valkey_version"].split(".")[0] in {"7", "8", "9"}


def test_settings_are_keyword_arguments(flavour: Flavour) -> None:
    with RedisServer(flavour, maxmemory="12mb", maxmemory_policy="noeviction", appendonly=True) as server:
        settings = server.settings()
        assert settings["maxmemory"] == str(12 * 1024 * 1024)
        assert settings["appendonly"] == "yes"
        server.restart(maxmemory="13mb")
        assert server.settings()["maxmemory"] == str(13 * 1024 * 1024)


def test_data_outlives_a_kill(flavour: Flavour) -> None:
    with RedisServer(flavour, profile=DURABLE) as server:
        port, first_pid = server.port, server.pid
        with server.client() as client:
            for number in range(100):
                client.set(f"key-{number}", number)
        server.kill()
        assert not server.answers()
        server.start()
        assert server.port == port
        assert server.pid != first_pid
        assert server.command("DBSIZE") == 100
        server.restart()
        assert server.command("GET", "key-99") == "99"


def test_server_without_persistence_forgets() -> None:
    with RedisServer() as server:
        server.command("SET", "a", "1")
        server.restart(kill=True)
        assert server.command("DBSIZE") == 0


def test_frozen_server_keeps_connections_and_answers_later(redis_server: RedisServer) -> None:
    with redis_server.client(socket_timeout=0.2) as client:
        client.ping()
        redis_server.freeze()
        with pytest.raises(NoAnswer):
            client.ping()
        assert redis_server.alive
        redis_server.thaw()
        assert client.ping()


def test_healed_server_is_whatever_it_was_before(redis_server: RedisServer) -> None:
    redis_server.freeze()
    assert redis_server.heal().answers()
    redis_server.kill()
    assert redis_server.heal().answers()
    assert redis_server.heal().answers()


def test_reset_puts_settings_and_data_back(redis_server: RedisServer) -> None:
    redis_server.command("CONFIG", "SET", "maxmemory", "3mb")
    redis_server.command("SET", "a", "1")
    redis_server.reset()
    assert redis_server.settings()["maxmemory"] == "0"
    assert redis_server.command("DBSIZE") == 0


def test_password_is_asked_for(flavour: Flavour) -> None:
    with RedisServer(flavour, password="p@ss:word/1") as server:
        assert server.answers()
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        with pytest.raises(AuthenticationError), server.client(password=None) as client:
            client.ping()


def test_tls_is_spoken_and_nothing_else() -> None:
    with RedisServer(tls=True) as server:
        assert server.url.startswith("rediss://")
        assert server.certificates
        with redis.Redis.from_url(server.url, ssl_ca_certs=str(server.certificates.authority)) as client:
            assert client.ping()
        with pytest.raises(RedisError), server.client(ssl=False) as client:
            client.ping()


def test_failure_shows_the_log() -> None:
    with pytest.raises(AssertionError, match="did not start") as caught:
        RedisServer(no_such_setting=1).__enter__()
    assert "no-such-setting" in str(caught.value)


def test_failure_of_a_test_shows_the_log_of_its_server() -> None:
    with pytest.raises(ValueError, match="as planned") as caught, RedisServer():
        raise ValueError("as planned")
    assert "Ready to accept connections" in "".join(caught.value.__notes__)


def test_port_that_is_taken_is_changed(redis_server: RedisServer) -> None:
    late = RedisServer()
    late.use({"port": redis_server.port})
    late.launch()
    eventually(lambda: not late.alive, what="the server finds its port taken")
    late._settings.pop("port")
    try:
        assert late.wait_until_ready().answers()
        assert late.port != redis_server.port
    finally:
        late.end()


def test_nothing_is_left_at_the_end() -> None:
    with RedisServer() as server:
        pid, directory = server.pid, server.directory
        server.freeze()
    assert not alive(pid)
    assert not directory.exists()


def test_server_dies_with_its_tests_even_when_they_are_killed(tmp_path: Path) -> None:
    script = tmp_path / "starts_one.py"
    script.write_text(
        "import os, signal, threading\n"
        "from tests.servers.redis_server import RedisServer\n"
        "server = RedisServer()\n"
        "starter = threading.Thread(target=server.start)\n"
        "starter.start(); starter.join()\n"  # the server outlives the thread that asked for it …
        "assert server.answers()\n"
        "print(server.pid, flush=True)\n"
        "signal.pause()\n"
    )
    here = environment(more={"TMPDIR": str(tmp_path)})  # its files stay behind
    process = subprocess.Popen([sys.executable, script], cwd=ROOT, env=here, stdout=subprocess.PIPE)
    with process:
        assert process.stdout
        pid = int(process.stdout.readline())
        assert alive(pid)
        os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: not alive(pid), what="the server ends")  # … but not the process


def test_nothing_is_left_of_a_server_that_nobody_ended(tmp_path: Path) -> None:
    script = tmp_path / "starts_one.py"
    script.write_text(
        "import os, sys\n"
        "from tests.servers.redis_server import RedisServer\n"
        "server = RedisServer().start()\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit()\n"  # a forked child ends nothing: the server is not its own
        "os.waitpid(child, 0)\n"
        "assert server.answers()\n"
        "print(server.pid, server.directory)\n"
    )
    done = subprocess.run(
        [sys.executable, script], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )
    pid, directory = done.stdout.split()
    assert not alive(int(pid))
    assert not Path(directory).exists()


def test_loading_is_waited_for() -> None:
    with RedisServer(profile=DURABLE, key_load_delay=2_000, loading_process_events_interval_bytes=1_024) as server:
        with server.client() as client, client.pipeline(transaction=False) as pipeline:
            for number in range(300):
                pipeline.set(f"key-{number}", "x" * 100)
            pipeline.execute()
        server.kill()
        server.launch()
        seen: list[str] = []
        eventually(lambda: _seen_loading(server, seen) or server.answers())
        server.wait_until_ready()
        assert server.command("DBSIZE") == 300


def _seen_loading(server: RedisServer, seen: list[str]) -> bool:
    try:
        server.command("DBSIZE")
    except BusyLoadingError:
        seen.append("loading")
    except NoConnection:
        return False
    return bool(seen)
