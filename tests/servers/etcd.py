"""A real etcd of one member: where the nodes of a Patroni cluster agree on their leader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.servers.loopback import HOST, LoopbackServer
from tests.servers.ports import server_port
from tests.servers.postgres_programs import program


class Etcd(LoopbackServer):
    """Keeps what it was told over a restart."""

    kind = "etcd"

    def __init__(self) -> None:
        super().__init__()
        self._peer_port = server_port()

    def answers(self) -> bool:
        """Whether it calls itself healthy."""
        try:
            with urlopen(f"http://{HOST}:{self.port}/health", timeout=2) as answer:
                return b'"true"' in answer.read()
        except (URLError, OSError):
            return False

    def _command(self) -> Sequence[str | Path]:
        clients, peers = f"http://{HOST}:{self.port}", f"http://{HOST}:{self._peer_port}"
        return [
            program("etcd"),
            *("--name", "one", "--data-dir", self.directory / "data"),
            *("--listen-client-urls", clients, "--advertise-client-urls", clients),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"one={peers}"),
            "--enable-v2",
        ]
