"""The server process: a socket, signals, and a way out that keeps nobody waiting."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvicorn

from holdfast import descriptors
from holdfast.api.app import make_api
from holdfast.api.gateway import Gateway
from holdfast.api.slow_clients import Impatient, ImpatientH11
from holdfast.errors import BadOption

#: What is still being answered after this long is cut off.
_GRACE_SECONDS: Final = 10
#: Longer than a client that is busy leaves its connection alone between two requests.
_KEEP_ALIVE_SECONDS: Final = 75
_BACKLOG: Final = 2_048
_COMPLAIN_SECONDS: Final = 10.0

log = logging.getLogger("holdfast.api")


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


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The factory of uvloop's event loops, if it is there."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def fastest_protocol() -> type[Impatient]:
    """The protocol that reads with httptools, if that is there."""
    try:
        import httptools  # noqa: F401
    except ImportError:
        return ImpatientH11
    from holdfast.api.httptools_protocol import ImpatientHttpTools

    return ImpatientHttpTools


class GatewayServer(uvicorn.Server):
    """Serves a gateway until SIGTERM, SIGINT or `should_exit`."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(
            uvicorn.Config(
                make_api(gateway),
                lifespan="off",  # the gateway is opened around the server, so that its errors are those of the command
                log_config=None,
                access_log=False,
                server_header=False,
                http=fastest_protocol(),  # type: ignore[arg-type]  # each is a protocol
                ws="none",
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._gateway = gateway

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """First lets everybody go who waits, so that there is nobody to wait for."""
        self._gateway.leave()
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


def _spare_the_collector() -> None:
    """Thousands of requests that wait are no garbage: looking through them all the time was half of what they cost."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


class Complaints:
    """What an event loop cannot tell anybody; that no descriptor is left, not as often as it would like to."""

    def __init__(self) -> None:
        self._told_at = -_COMPLAIN_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """As an exception handler of the loop."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in {errno.EMFILE, errno.ENFILE}:
            loop.default_exception_handler(context)
        elif loop.time() - self._told_at >= _COMPLAIN_SECONDS:
            self._told_at = loop.time()
            log.error("no descriptor is left for another connection: raise the limit (ulimit -n), or add a gateway")


async def serve(gateway: Gateway, listener: socket.socket) -> None:
    """Answers requests until it is told to stop; for a process that does nothing else."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # its warnings tell only that a client sent nonsense
    asyncio.get_running_loop().set_exception_handler(Complaints())
    descriptors.allow_many()
    async with gateway.opened():
        _spare_the_collector()
        await GatewayServer(gateway).serve([listener])
