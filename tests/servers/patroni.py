"""A real Patroni cluster on the loopback address: one etcd and three nodes, in strict synchronous mode."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import psycopg

from tests.servers.etcd import Etcd
from tests.servers.patroni_node import PatroniNode
from tests.servers.postgres import server_url
from tests.servers.postgres_programs import Setting
from tests.servers.processes import end_at_exit, ended
from tests.support import ROOT, eventually

T = TypeVar("T")

#: The leader's key lives for 20 s after a kill; then there is an election, and everything may be slow.
LEADER_CHANGE_S: Final = 90.0
_WHOLE_S: Final = 120.0


class PatroniCluster:
    """Three nodes of which one leads; as a context manager, nothing of it is left at the end."""

    def __init__(self, nodes: int = 3, **settings: Setting) -> None:
        self.etcd = Etcd()
        self.members = [PatroniNode(f"node{number}", self.etcd, **settings) for number in range(1, nodes + 1)]
        self._guard = _Guard([server.directory for server in [self.etcd, *self.members]])
        end_at_exit(self)

    # -- its life -------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Starts all; returns when there is a leader, and the others follow."""
        self.etcd.start()
        for node in self.members:
            node.launch()
        for node in self.members:
            node.wait_until_ready()
        return self.wait_until_whole()

    def wait_until_whole(self, timeout: float = _WHOLE_S) -> Self:
        """Returns when all nodes run, one leads, the others stream from it, and one of them is waited for."""
        self.waited(self._is_whole, timeout, "one node leads and the others follow")
        return self

    def heal(self) -> Self:
        """Whatever a test did to it, all nodes run and are one again."""
        self.etcd.heal()
        for node in self.members:
            node.heal()
        return self.wait_until_whole()

    def end(self) -> None:
        """Nothing of it is left."""
        for node in self.members:
            node.end()
        self.etcd.end()
        self._guard.dismiss()
        ended(self)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException as error:
            error.add_note(self.log())
            self.end()
            raise

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.log())
        self.end()

    # -- what it is -----------------------------------------------------------------------------------------

    def url(self, database: str = "postgres", **options: Any) -> str:
        """What a client connects to: all nodes, of which it wants the one that takes writes."""
        ports = [node.database_port for node in self.members]
        return server_url(ports, database, **{"target_session_attrs": "read-write", **options})

    def leader(self) -> PatroniNode | None:
        """The node that leads at this moment, if one does."""
        return next((node for node in self.members if node.leads), None)

    def wait_for_leader(self, *, other_than: PatroniNode | None = None) -> PatroniNode:
        """The leader, as soon as there is one that is not this one."""

        def found() -> PatroniNode | None:
            leader = self.leader()
            return leader if leader is not other_than else None

        leader = self.waited(found, LEADER_CHANGE_S, f"another node than {other_than} leads")
        assert leader is not None
        return leader

    def standbys(self) -> list[PatroniNode]:
        """The nodes that do not lead."""
        leader = self.leader()
        return [node for node in self.members if node is not leader]

    def synchronous_standby(self) -> PatroniNode | None:
        """The node that commits wait for, as the cluster has agreed on it."""
        names = [name for name, role in self.roles().items() if role == "sync_standby"]
        return next((node for node in self.members if node.name in names), None)

    def wait_for_synchronous_standby(self) -> PatroniNode:
        """The node that commits wait for, as soon as there is one."""
        standby = self.waited(self.synchronous_standby, LEADER_CHANGE_S, "a standby is waited for")
        assert standby is not None
        return standby

    def roles(self) -> dict[str, str]:
        """The role of each node that is well, by its name."""
        answers = (node.ask("/cluster") for node in self.members if node.running)
        answer = next((answer for answer in answers if answer), None)
        members = json.loads(answer[1])["members"] if answer else []
        return {member["name"]: member["role"] for member in members if member["state"] in {"running", "streaming"}}

    def query(self, sql: str, *values: Any, database: str = "postgres") -> list[tuple[Any, ...]]:
        """The rows of one statement on the leader."""
        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(sql.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def make_database(self) -> str:
        """The name of a new, empty database."""
        name = f"test_{secrets.token_hex(6)}"
        self.query(f"CREATE DATABASE {name}")
        return name

    def log(self) -> str:
        """What each of them wrote last."""
        return "\n".join(f"--- {server}\n{server.log()}" for server in [self.etcd, *self.members])

    def waited(self, condition: Callable[[], T], timeout: float, what: str) -> T:
        """The first truthy value of the condition; a failure shows what the servers wrote."""
        try:
            return eventually(condition, timeout, what)
        except AssertionError as error:
            error.add_note(self.log())
            raise

    # -- faults ---------------------------------------------------------------------------------------------

    def kill_leader(self, *, wait: bool = True) -> PatroniNode:
        """SIGKILL to the leader, Patroni and server; returns it, when another node leads."""
        old = self.wait_for_leader()
        old.kill()
        if wait:
            self.wait_for_leader(other_than=old)
        return old

    def switchover(self) -> PatroniNode:
        """Asks the leader to hand over to the synchronous standby; returns the new leader."""
        old = self.wait_for_leader()
        # It is refused while the standby is not known to be well.
        self.waited(lambda: self._handed_over(old), LEADER_CHANGE_S, f"{old} hands over")
        return self.wait_for_leader(other_than=old)

    def _handed_over(self, old: PatroniNode) -> bool:
        candidate = self.synchronous_standby()
        if candidate is None:
            return False
        answer = old.ask("/switchover", {"leader": old.name, "candidate": candidate.name}, timeout=LEADER_CHANGE_S)
        return answer is not None and answer[0] in {200, 202}

    # -- inside ---------------------------------------------------------------------------------------------

    def _is_whole(self) -> bool:
        wanted = ["leader", *["replica"] * (len(self.members) - 2), "sync_standby"]
        return sorted(self.roles().values()) == wanted and self.leader() is not None and self._streams()

    def _streams(self) -> bool:
        try:
            rows = self.query("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'")
        except psycopg.Error:
            return False
        return len(rows) == len(self.members) - 1 and ("sync",) in rows


class _Guard:
    """Cleans up if we are killed: Patroni starts its servers apart, so the kernel does not end them with us."""

    _PROGRAM: Final = """
import shutil, signal, sys
from pathlib import Path
if sys.stdin.read() != "dismissed":
    from tests.servers.postmaster import postmaster_of, remove_shared_memory, signal_family
    for directory in map(Path, sys.argv[1:]):
        if postmaster := postmaster_of(directory / "data"):
            signal_family(postmaster, signal.SIGKILL)
        remove_shared_memory(directory / "data")
        shutil.rmtree(directory, ignore_errors=True)
"""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", self._PROGRAM, *map(str, directories)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
            cwd=ROOT,
        )

    def dismiss(self) -> None:
        """All is ended already."""
        if self._process.poll() is None:
            self._process.communicate("dismissed", timeout=10)
