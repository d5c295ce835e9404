"""One node of a Patroni cluster: Patroni itself, and the PostgreSQL server that it starts and looks after."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import psycopg

from tests.servers.etcd import Etcd
from tests.servers.loopback import HOST, LoopbackServer
from tests.servers.ports import server_port
from tests.servers.postgres import server_url
from tests.servers.postgres_programs import (
    COMMON,
    DURABLE,
    PASSWORD,
    SUPERUSER,
    Setting,
    program,
    programs_directory,
    value_text,
)
from tests.servers.postmaster import postmaster_of, remove_shared_memory, send, signal_family
from tests.support import eventually

SCOPE: Final = "holdfast"
_ANSWER_S: Final = 3.0
_LOOPBACK: Final = (
    "local all all",
    "local replication all",
    f"host all all {HOST}/32",
    f"host replication all {HOST}/32",
)
#: Strict: a commit waits for a standby, and if there is none, it waits until there is.
_AGREED: Final[dict[str, Any]] = {
    "ttl": 20,
    "loop_wait": 2,
    "retry_timeout": 5,
    "primary_start_timeout": 0,
    "synchronous_mode": True,
    "synchronous_mode_strict": True,
    "synchronous_node_count": 1,
    "check_timeline": True,
}


class PatroniNode(LoopbackServer):
    """`port` is the one of Patroni's interface; freeze and kill are for Patroni and its server together."""

    kind = "patroni"

    def __init__(self, name: str, etcd: Etcd, **settings: Setting) -> None:
        super().__init__()
        self.name = name
        self.database_port = server_port()
        self._etcd = etcd
        self._settings = {**COMMON, **DURABLE, **settings}

    # -- its life -------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL to Patroni, the postmaster and all backends, as the end of the machine would be."""
        self.kill_patroni()
        if postmaster := self.postmaster:
            signal_family(postmaster, signal.SIGKILL)
            eventually(lambda: self.postmaster is None, what=f"the postmaster of {self} is gone")

    def kill_patroni(self) -> None:
        """SIGKILL to Patroni alone; its server goes on, with nobody to look after it."""
        super().kill()

    def freeze(self) -> None:
        """SIGSTOP to Patroni and its server."""
        self.freeze_patroni()
        self._signal_server(signal.SIGSTOP)

    def freeze_patroni(self) -> None:
        """SIGSTOP to Patroni alone; its server goes on, with nobody to look after it."""
        super().freeze()

    def thaw(self) -> None:
        """SIGCONT to both."""
        self._signal_server(signal.SIGCONT)
        super().thaw()

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """Nothing that the primary sends arrives; at the end, what was on its way is lost."""
        [(receiver,)] = self.query("SELECT pid FROM pg_stat_wal_receiver")
        send(receiver, signal.SIGSTOP)
        try:
            yield
        finally:
            # It ends before it reads again, and with it goes what the kernel has kept for it.
            send(receiver, signal.SIGTERM)
            send(receiver, signal.SIGCONT)

    def heal(self) -> Self:
        """Whatever a test did to it, Patroni runs; the server follows when Patroni has seen to it."""
        if self._process and self._process.frozen:
            self.thaw()
        return self.wait_until_ready() if self.alive else self.start()

    def end(self) -> None:
        """Nothing of it is left: no process, no files, no shared memory."""
        self.kill()
        remove_shared_memory(self._data)
        super().end()

    # -- what it is -----------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return f"{self.name} (Patroni on port {self.port}, PostgreSQL on port {self.database_port})"

    @property
    def postmaster(self) -> int | None:
        """The pid of its server, if that runs."""
        return postmaster_of(self._data)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of its server."""
        return HOST, self.database_port

    def url(self, database: str = "postgres", **options: Any) -> str:
        """What a client connects to that wants this node and no other."""
        return server_url([self.database_port], database, **options)

    def answers(self) -> bool:
        """Whether Patroni says how it is, well or not."""
        return self.ask("/patroni") is not None

    @property
    def leads(self) -> bool:
        """Whether it holds the leader's key and takes writes, which it does some time after it got the key."""
        answer = self.ask("/primary") if self.running else None
        return answer is not None and answer[0] == 200 and self._takes_writes()

    def ask(self, path: str, body: dict[str, Any] | None = None, timeout: float = _ANSWER_S) -> tuple[int, str] | None:
        """Status and text of an answer of Patroni's interface; None if there is no answer."""
        data = json.dumps(body).encode() if body is not None else None
        request = Request(f"http://{HOST}:{self.port}{path}", data, {"Content-Type": "application/json"})
        try:
            with urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except (URLError, OSError):
            return None

    def query(self, sql: str, *values: Any, database: str = "postgres") -> list[tuple[Any, ...]]:
        """The rows of one statement on this node."""
        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(sql.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    # -- inside ---------------------------------------------------------------------------------------------

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _takes_writes(self) -> bool:
        try:
            return self.query("SELECT pg_is_in_recovery()") == [(False,)]
        except psycopg.Error:
            return False

    def _signal_server(self, number: int) -> None:
        if postmaster := self.postmaster:
            signal_family(postmaster, number)

    def _command(self) -> Sequence[str | Path]:
        config = self.directory / "patroni.yml"
        config.write_text(json.dumps(self._config(), indent=1))  # which is YAML too
        return [program("patroni"), config]

    def _config(self) -> dict[str, Any]:
        interface, server = f"{HOST}:{self.port}", f"{HOST}:{self.database_port}"
        parameters = {name: value_text(value) for name, value in self._settings.items()}
        return {
            "scope": SCOPE,
            "name": self.name,
            "restapi": {"listen": interface, "connect_address": interface},
            # Not etcd3: with it, a frozen leader of Patroni 3.0.2 wakes up and takes the key from its successor.
            "etcd": {"host": f"{HOST}:{self._etcd.port}"},
            "bootstrap": {
                "dcs": {**_AGREED, "postgresql": {"use_pg_rewind": True, "parameters": parameters}},
                "initdb": ["no-locale", {"encoding": "UTF8"}, {"auth": "trust"}],
            },
            "postgresql": {
                "listen": server,
                "connect_address": server,
                "data_dir": str(self._data),
                "bin_dir": str(programs_directory()),
                "pgpass": str(self.directory / "pgpass"),
                "pg_hba": [f"{place} trust" for place in _LOOPBACK],
                "parameters": {"unix_socket_directories": str(self.directory)},
                "authentication": {
                    "superuser": {"username": SUPERUSER, "password": PASSWORD},
                    "replication": {"username": "replicator", "password": PASSWORD},
                },
            },
        }
