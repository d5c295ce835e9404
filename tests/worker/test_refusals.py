"""A store that answered once and then refuses the login: for a running worker that is an outage like any other."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from holdfast.core.task import State
from tests.postgres.link.helpers import with_options
from tests.servers.loopback import HOST
from tests.servers.postgres import PostgresServer
from tests.servers.redis_server import RedisServer
from tests.support import eventually, run_holdfast, run_worker
from tests.worker.apps.jobs import make_app
from tests.worker.helpers import APP, enqueue, in_state, outcomes, runs, working

PASSWORD = "s3cr3t-p4ss"


class _Redis:
    """A server that can change its password."""

    def __init__(self) -> None:
        self._server = RedisServer(password=PASSWORD)
        self._password = PASSWORD

    def __enter__(self) -> str:
        self._server.__enter__()
        return f"redis://:{PASSWORD}@{HOST}:{self._server.port}"

    def __exit__(self, *_: object) -> None:
        self._server.__exit__(None, None, None)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        with self._server.client() as admin:
            admin.config_set("requirepass", "another")
            admin.client_kill_filter(_type="normal", skipme=True)
            try:
                yield
            finally:
                admin.config_set("requirepass", PASSWORD)


class _Postgres:
    """A server with a role that may be told not to log in."""

    def __init__(self) -> None:
        self._server = PostgresServer()

    def __enter__(self) -> str:
        self._server.__enter__()
        self._do("CREATE ROLE hf LOGIN", "CREATE DATABASE tasks OWNER hf")
        url = self._server.url("tasks", user="hf")
        assert run_holdfast("migrate", url=url).returncode == 0
        return url

    def __exit__(self, *_: object) -> None:
        self._server.__exit__(None, None, None)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        self._do("ALTER ROLE hf NOLOGIN", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'hf'")
        try:
            yield
        finally:
            self._do("ALTER ROLE hf LOGIN")

    def _do(self, *statements: str) -> None:
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


@pytest.mark.parametrize("kind", [_Redis, _Postgres])
def test_a_refused_login_is_waited_out(kind: type[_Redis | _Postgres], tmp_path: Path) -> None:
    server = kind()
    with server as address, make_app(with_options(address, deadline="500ms")) as jobs:
        running = enqueue(jobs, "notes", str(tmp_path / "runs"), 3600.0)
        with working(jobs.url, "--concurrency", "2", "--lease", "120s", "--grace", "100ms") as worker:
            in_state(running, State.CLAIMED)
            first = worker.children()
            with server.refusing():
                eventually(lambda: "reserving: the store does not answer" in worker.output(), 30)
                assert worker.process.poll() is None
                assert worker.children() == first
            assert enqueue(jobs, "add", 1, 2).result(timeout=30) == 3
            assert worker.children() == first
            assert worker.stop() == 0
        assert runs(tmp_path / "runs") == {running.task_id: 1}
        assert outcomes(running) == ["released"]


@pytest.mark.parametrize("kind", [_Redis, _Postgres])
def test_a_child_that_starts_while_logins_are_refused_waits_too(kind: type[_Redis | _Postgres]) -> None:
    server = kind()
    with (
        server as address,
        make_app(with_options(address, deadline="500ms")) as jobs,
        working(jobs.url, "--lease", "120s") as worker,
    ):
        (first,) = eventually(worker.children)
        with server.refusing():
            os.kill(first, signal.SIGKILL)
            eventually(lambda: "reserving: the store does not answer" in worker.output().partition("SIGKILL")[2], 30)
            assert worker.process.poll() is None
            assert worker.children() != [first]
        assert enqueue(jobs, "add", 1, 2).result(timeout=30) == 3
        assert worker.stop() == 0


@pytest.mark.parametrize("kind", [_Redis, _Postgres])
def test_a_worker_that_is_refused_at_its_start_ends_at_once(kind: type[_Redis | _Postgres]) -> None:
    server = kind()
    with server as address, server.refusing(), run_worker(APP, address) as worker:
        assert worker.process.wait(30) == 2
