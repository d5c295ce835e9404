"""Connections without a client that would keep to the rules."""

from __future__ import annotations

import socket

from tests.server.security.gate import Gate


def connected(gate: Gate) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gate.port), 60)


def rest(connection: socket.socket) -> bytes:
    """All that comes until the end."""
    parts = []
    try:
        while data := connection.recv(65_536):
            parts.append(data)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def answer_of(connection: socket.socket) -> bytes:
    """One whole answer of a connection that stays open."""
    data = b""
    while b"\r\n\r\n" not in data or not data.endswith(b"}"):
        more = connection.recv(65_536)
        assert more, data
        data += more
    return data
