"""The server process: socket, signals, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
from collections.abc import Iterator
from typing import Any, Final

import uvicorn

from holdfast.admin import tokens
from holdfast.clock import Clock, SystemClock
from holdfast.errors import BadOption, StoreUnavailable
from holdfast.runtime import descriptors
from holdfast.security.tokens import TOKEN_KIND, TokenText
from holdfast.server.app import make_app
from holdfast.server.edge import MAX_HEAD_BYTES, is_loopback
from holdfast.server.server import Server
from holdfast.stores.contract import Store

#: What is still being answered after this long is cut off.
_GRACE_SECONDS: Final = 10
#: Longer than a client that is busy leaves its connection alone between two requests.
_KEEP_ALIVE_SECONDS: Final = 75
#: A head that is longer is refused before it is complete; `Edge` refuses shorter ones than this with a problem.
_MAX_UNREAD_HEAD_BYTES: Final = 2 * MAX_HEAD_BYTES
_BACKLOG: Final = 2_048
_COMPLAIN_SECONDS: Final = 10.0

log = logging.getLogger("holdfast.server")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, or a `BadOption` in one line; port 0 is any that is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadOption(f"cannot listen on {shown(host, port)}: {reason}; name another --host or --port") from None
    return listener


def shown(host: str, port: int) -> str:
    """An address as URLs have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class HttpServer(uvicorn.Server):
    """Serves a server until SIGTERM, SIGINT or `should_exit`."""

    def __init__(self, server: Server) -> None:
        super().__init__(
            uvicorn.Config(
                make_app(server),
                lifespan="off",  # our `Server` is opened around it, so that its errors are those of the command
                log_config=None,
                access_log=False,
                server_header=False,
                # Not httptools, which has no limit on headers, takes trailers for headers and does not read the body
                # of a request that offers an upgrade, as Java's client does.
                http="h11",
                h11_max_incomplete_event_size=_MAX_UNREAD_HEAD_BYTES,
                ws="none",
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._holdfast = server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends all waits first, so that open requests finish at once."""
        self._holdfast.leave()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ends in order at the first signal, at once at the second; the exit code is that of a command that is done."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        with contextlib.suppress(RuntimeError, ValueError):  # not the main thread: the caller ends it
            for number in numbers:
                loop.add_signal_handler(number, self._end)
        try:
            yield
        finally:
            with contextlib.suppress(RuntimeError, ValueError):
                for number in numbers:
                    loop.remove_signal_handler(number)

    def _end(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def _tune_garbage_collector() -> None:
    """Collects less often: walking through thousands of waiting requests was half of their cost."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


class LoopErrors:
    """Exception handler of the event loop; limits the rate of reports that no file descriptor is left."""

    def __init__(self) -> None:
        self._told_at = -_COMPLAIN_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """As an exception handler of the loop."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in {errno.EMFILE, errno.ENFILE}:
            loop.default_exception_handler(context)
        elif loop.time() - self._told_at >= _COMPLAIN_SECONDS:
            self._told_at = loop.time()
            log.error("no file descriptor is left for another connection: raise the limit (ulimit -n), or add a server")


async def serve(server: Server, listener: socket.socket) -> None:
    """Serves until SIGTERM or Ctrl-C; for a process that does nothing else."""
    # All that it could tell is that a client sent nonsense or does not read its answer.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    asyncio.get_running_loop().set_exception_handler(LoopErrors())
    descriptors.allow_many()
    async with server.opened():
        _tune_garbage_collector()
        await HttpServer(server).serve([listener])


async def first_token(store: Store, host: str, *, clock: Clock | None = None) -> TokenText | None:
    """A token with all scopes, to be shown once, if the store has none; `BadOption` if other hosts can reach us.

    Without a token every request is refused, so a store that does not answer yet is no reason to exit.
    """
    try:
        if is_loopback(host):
            return await tokens.create_first(store, now_ms=(clock or SystemClock()).now_ms())
        has_tokens = bool((await store.documents(TOKEN_KIND, limit=1)).documents)
    except StoreUnavailable as error:
        log.warning("the store does not answer; all requests are refused until it does: %s", error)
        return None
    if not has_tokens:
        raise no_token(host)
    return None


def no_token(host: str) -> BadOption:
    """The error for a server that other hosts could reach, and no client could use."""
    return BadOption(
        f"--host {host} is refused while there is no token: make one with `holdfast token create --scope admin`"
    )
