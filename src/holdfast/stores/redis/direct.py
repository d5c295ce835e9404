"""One try at a call on a blocking socket, in the thread of a sync caller: it saves the way to an event loop and back.

It knows nothing of retries, redirections or new masters. Whatever is out of the ordinary ends the connection and the
try; the caller then goes the long way with the same ids, and finds what the try has done.
"""
# mypy: allow-untyped-calls

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from redis.connection import Connection, SSLConnection
from redis.exceptions import RedisError

from holdfast.stores.redis.clients import Word, connection_options, packed
from holdfast.stores.redis.info import check_master
from holdfast.stores.redis.urls import Address, RedisSettings

if TYPE_CHECKING:
    from holdfast.stores.redis.scripts import Script

#: So long may a try take; the long way has its whole deadline after it.
_TRY_SECONDS: Final = 1.0
#: Connections that are kept; more threads than this may call at the same time.
_MOST_IDLE: Final = 32


class DirectLine:
    """Blocking connections to one server at a time; each process has its own."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        #: By process and server. What a parent left here stays untouched in its child: closing it would disturb him.
        self._idle: dict[tuple[int, Address], list[Connection]] = {}
        self._closed = False

    def call(self, address: Address, script: Script, words: Sequence[Word]) -> Any:
        """The reply, or None if anything but a reply came."""
        idle = self._idle.get((os.getpid(), address)) or self._only(address)
        try:
            connection = _popped(idle) or self._connected(address)
            # On an error, and when an interrupt ends the wait, redis-py closes the connection: no reply is left in it.
            connection.send_packed_command(packed(connection, [("EVALSHA", script.sha, 1, *words)]), check_health=False)
            reply = connection.read_response()
        except (RedisError, OSError):
            return None
        if self._closed or len(idle) >= _MOST_IDLE:
            connection.disconnect()
        else:
            idle.append(connection)
        return reply

    def close(self) -> None:
        """Ends the connections of this process."""
        self._closed = True
        self._end(os.getpid())

    def _only(self, address: Address) -> list[Connection]:
        """The connections to this server; those to another one, the master of yesterday, are ended."""
        pid = os.getpid()
        if (pid, address) not in self._idle:
            self._end(pid)
            self._idle[pid, address] = []
        return self._idle[pid, address]

    def _end(self, pid: int) -> None:
        for key in [key for key in self._idle if key[0] == pid]:
            for connection in self._idle.pop(key):
                connection.disconnect()

    def _connected(self, address: Address) -> Connection:
        options = connection_options(self._settings, address) | {"socket_timeout": _TRY_SECONDS}
        connection: Connection = SSLConnection(**options) if self._settings.tls else Connection(**options)
        connection.connect()
        connection.send_command("ROLE")
        check_master(connection.read_response())
        return connection


def _popped(idle: list[Connection]) -> Connection | None:
    try:
        return idle.pop()
    except IndexError:  # also when another thread was faster
        return None
