"""Loopback ports for servers that a test stops and starts again."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 10_000
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_given_out: set[int] = set()


def server_port() -> int:
    """A port that nobody listens on, that this process has not had before, and that no outgoing connection takes.

    Ports of outgoing connections are left out: while the server is down, a client that tries to reach it could be
    given its port, which then is taken at the restart, or even connect to itself.
    """
    choose = random.SystemRandom()
    for _ in range(1_000):
        port = choose.randrange(_LOWEST, _first_outgoing_port())
        if port not in _given_out and _is_free(port):
            _given_out.add(port)
            return port
    raise AssertionError("no free port among 1,000")


def _first_outgoing_port() -> int:
    try:
        return int(_RANGE_FILE.read_text().split()[0])
    except OSError:
        return 32_768


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
