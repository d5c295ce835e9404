"""One real PostgreSQL server on a free loopback port, with a directory of its own."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self
from urllib.parse import quote, urlencode

import psycopg

from tests.servers.loopback import HOST, START_TIMEOUT_S, LoopbackServer
from tests.servers.postgres_programs import (
    COMMON,
    FAST,
    PASSWORD,
    SUPERUSER,
    Setting,
    Settings,
    new_data,
    program,
    settings_text,
    value_text,
)
from tests.servers.postmaster import Postmaster, remove_shared_memory
from tests.servers.processes import run_as, server_user
from tests.support import eventually

Shutdown = Literal["smart", "fast", "immediate"]
_SIGNALS: Final = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class PostgresServer(LoopbackServer):
    """A server; its settings are keyword arguments (`max_connections=20`), laid over a profile.

    To freeze or to kill it means the postmaster and all of its backends, as if it were the machine.
    """

    kind = "postgres"
    passing_reasons = ("is still in use",)  # by backends of a killed postmaster, which have not ended yet
    process_type = Postmaster

    def __init__(
        self,
        *,
        profile: Settings = FAST,
        ask_password: bool = False,
        follows: PostgresServer | None = None,
        name: str = "standby",
        prefix: Sequence[str] = (),
        **settings: Setting,
    ) -> None:
        super().__init__(prefix)
        self.name = name
        self._ask_password = ask_password
        self._follows = follows
        self._settings: dict[str, Setting] = {**COMMON, **profile, **settings}

    # -- its life -------------------------------------------------------------------------------------------

    def stop(self, mode: Shutdown = "fast") -> None:
        """A shutdown as `pg_ctl stop` makes it; `immediate` leaves recovery to the next start."""
        if self._process:
            self._process.stop(number=_SIGNALS[mode])

    def kill_postmaster(self) -> None:
        """SIGKILL to the postmaster alone; its backends end when they notice."""
        postmaster = self._running()
        assert isinstance(postmaster, Postmaster)
        postmaster.kill_alone()

    def restart(self, *, kill: bool = False, **settings: Setting) -> Self:
        """Stops or kills it and starts it on the same port and data, with changed settings if some are given."""
        self.kill() if kill else self.stop()
        self.configure(**settings)
        return self.start()

    def configure(self, **settings: Setting) -> None:
        """Changes settings for the next start."""
        self._settings |= settings
        if self._data.exists():
            self._config_path.write_text(settings_text(self._settings))

    def end(self) -> None:
        """Nothing of it is left: no process, no files, no shared memory."""
        self.stop("immediate")
        remove_shared_memory(self._data)
        super().end()

    def url(self, database: str = "postgres", **options: Any) -> str:
        """What a client connects to; the options are appended, but `user` and `password`, which are the log-in."""
        return server_url([self.port], database, **options)

    # -- talking to it --------------------------------------------------------------------------------------

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """A new autocommit connection of the superuser through the socket file, to be used in a `with`."""
        place: dict[str, Any] = {"host": str(self.directory), "port": self.port, "dbname": database}
        return psycopg.connect(
            **{**place, "user": SUPERUSER, "autocommit": True, "connect_timeout": 5, **options},
        )

    def query(self, sql: str, *values: Any, database: str = "postgres") -> list[tuple[Any, ...]]:
        """The rows of one statement, none if it has no rows."""
        with self.connect(database) as connection:
            cursor = connection.execute(sql.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, sql: str, *values: Any, database: str = "postgres") -> Any:
        """The first column of the first row."""
        return self.query(sql, *values, database=database)[0][0]

    def answers(self) -> bool:
        """Whether it accepts a connection and a query, which it does not while it recovers."""
        try:
            return bool(self.value("SELECT 1"))
        except psycopg.Error:
            return False

    def make_database(self) -> str:
        """The name of a new, empty database."""
        name = f"test_{secrets.token_hex(6)}"
        self.query(f"CREATE DATABASE {name}")
        return name

    def drop_database(self, name: str) -> None:
        """Deletes a database and ends the connections to it."""
        self.query(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def setting(self, name: str) -> str:
        """The value of a setting, as a new connection sees it."""
        return str(self.value("SELECT current_setting(%s)", name))

    def alter(self, **settings: Setting) -> None:
        """ALTER SYSTEM for settings that need no restart; returns when new connections see them."""
        for name, value in settings.items():
            self.query(f"ALTER SYSTEM SET {name} = '{value_text(value)}'")
        self._reload()

    def reset(self) -> None:
        """Takes back what `alter` did."""
        self.query("ALTER SYSTEM RESET ALL")
        self._reload()

    def terminate_backends(self, where: str = "true") -> int:
        """pg_terminate_backend for the clients that this condition on pg_stat_activity finds; returns how many."""
        others = f"backend_type = 'client backend' AND pid <> pg_backend_pid() AND ({where})"
        return len(self.query(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))

    # -- standbys -------------------------------------------------------------------------------------------

    def standby(self, name: str = "standby", **settings: Setting) -> PostgresServer:
        """A server that will follow this one as soon as it is started, known to it by this name."""
        return PostgresServer(profile={**self._settings, **settings}, follows=self, name=name)

    def wait_for_standby(self, name: str = "standby", state: str = "streaming") -> None:
        """Returns when the standby of this name streams; `sync` as state: when commits wait for it."""
        condition = "application_name = %s AND %s IN (state, sync_state)"
        eventually(
            lambda: self.query(f"SELECT 1 FROM pg_stat_replication WHERE {condition}", name, state),
            START_TIMEOUT_S,
            f"{name} is {state} at {self}",
        )

    def promote(self) -> None:
        """Makes a standby a primary; returns when it accepts writes."""
        assert self.value("SELECT pg_promote()"), f"{self} was not promoted:\n{self.log()}"

    # -- inside ---------------------------------------------------------------------------------------------

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _config_path(self) -> Path:
        return self._data / "postgresql.conf"

    def _command(self) -> Sequence[str | Path]:
        if not self._data.exists():
            self._make_data()
        return [program("postgres"), "-D", self._data, "-k", self.directory, "-h", HOST, "-p", str(self.port)]

    def _make_data(self) -> None:
        if self._follows:
            self._copy_of(self._follows)
        else:
            new_data(self._data)
        self._config_path.write_text(settings_text(self._settings))
        host = "scram-sha-256" if self._ask_password else "trust"
        lines = [f"local {what} all trust\nhost {what} all {HOST}/32 {host}\n" for what in ("all", "replication")]
        (self._data / "pg_hba.conf").write_text("".join(lines))

    def _copy_of(self, primary: PostgresServer) -> None:
        source = f"host={primary.directory} port={primary.port} user={SUPERUSER} application_name={self.name}"
        how = ["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]
        backup = program("pg_basebackup")
        run_as(server_user(), backup, "--pgdata", self._data, "--dbname", source, *how, cwd=self.directory)

    def _reload(self) -> None:
        before = self.value("SELECT pg_conf_load_time()")
        self.query("SELECT pg_reload_conf()")
        eventually(lambda: self.value("SELECT pg_conf_load_time()") > before, what=f"{self} has new settings")


def server_url(
    ports: Sequence[int], database: str, *, user: str = SUPERUSER, password: str = PASSWORD, **options: Any
) -> str:
    """The URL of a database on one of several servers."""
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    places = ",".join(f"{HOST}:{port}" for port in ports)
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"postgresql://{login}@{places}/{database}{query}"
