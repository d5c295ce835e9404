"""A real pgbouncer in front of a PostgreSQL server: by default in transaction mode, the hard case for clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.servers.loopback import HOST, LoopbackServer
from tests.servers.postgres import PostgresServer, server_url
from tests.servers.postgres_programs import PASSWORD, SUPERUSER, Setting, program

_DEFAULTS: Final[dict[str, Setting]] = {
    "pool_mode": "transaction",
    "default_pool_size": 20,
    "max_client_conn": 500,
    "server_login_retry": 1,  # seconds; with the default of 15, a restarted server is found late
}


class PgBouncer(LoopbackServer):
    """Settings are keyword arguments; the log-in is the one of the server behind."""

    kind = "pgbouncer"

    def __init__(self, server: PostgresServer, **settings: Setting) -> None:
        super().__init__()
        self._server = server
        self._settings = {**_DEFAULTS, **settings}

    def url(self, database: str = "postgres", **options: Any) -> str:
        """What a client connects to; the options are appended."""
        return server_url([self.port], database, **options)

    def query(self, sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """The rows of one statement; the database `pgbouncer` is its console (`SHOW POOLS`)."""
        # Its console knows only the simple protocol.
        simple: dict[str, Any] = {"autocommit": True, "cursor_factory": psycopg.ClientCursor}
        with psycopg.connect(self.url(database), connect_timeout=5, **simple) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def answers(self) -> bool:
        """Whether its console does; the server behind need not."""
        try:
            return bool(self.query("SHOW VERSION", "pgbouncer"))
        except psycopg.Error:
            return False

    def _command(self) -> Sequence[str | Path]:
        config, users = self.directory / "pgbouncer.ini", self.directory / "users.txt"
        users.write_text(f'"{SUPERUSER}" "{PASSWORD}"\n')
        place: dict[str, Setting] = {
            "listen_addr": HOST,
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": str(users),
            "admin_users": SUPERUSER,
        }
        lines = "".join(f"{name} = {value}\n" for name, value in {**place, **self._settings}.items())
        config.write_text(f"[databases]\n* = host={HOST} port={self._server.port}\n\n[pgbouncer]\n{lines}")
        return [program("pgbouncer"), config]
