"""`holdfast server`: the store over HTTP."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from ipaddress import IPv6Address
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import duration_type, log_options, missing_file, url_option
from holdfast.core.retry import RunPolicy
from holdfast.observe.logs import LogFormat

if TYPE_CHECKING:
    from holdfast.server.server import ServerSettings

_log = logging.getLogger("holdfast.server")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def host_name(value: str) -> str:
    """Reads the name or the address of a host, IPv6 with or without brackets."""
    from holdfast.stores.urls import known_host

    bare = value.removeprefix("[").removesuffix("]")
    try:
        if not _NAME.fullmatch(value):
            IPv6Address(bare)
        known_host(bare)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is no host; write a name or an address, such as 127.0.0.1, without a port"
        ) from None
    return bare


@click.command()
@click.option(
    "--host",
    type=host_name,
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    metavar="N",
    default=8080,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option(
    "--allow-host",
    "names",
    type=host_name,
    multiple=True,
    metavar="NAME",
    help="Accept this name in the Host header, as behind a proxy; repeatable.",
)
@click.option(
    "--maintenance/--no-maintenance", default=True, help="Run maintenance for the store, as a worker does.  [yes]"
)
@click.option(
    "--result-ttl",
    type=duration_type("--result-ttl"),
    default="1d",
    show_default=True,
    metavar="DURATION",
    help="Keep tasks enqueued over HTTP this long after their end, unless they say otherwise.",
)
@click.option(
    "--dead-letter-ttl",
    type=duration_type("--dead-letter-ttl"),
    default="14d",
    show_default=True,
    metavar="DURATION",
    help="Keep dead letters of tasks enqueued over HTTP this long, unless they say otherwise.",
)
@url_option
@log_options
def server(  # noqa: PLR0913, PLR0917  (its options)
    host: str,
    port: int,
    names: tuple[str, ...],
    maintenance: bool,
    result_ttl: int,
    dead_letter_ttl: int,
    url: str,
    log_level: str,
    log_format: LogFormat,
    as_json: bool,
) -> None:
    """Serve the store over HTTP until SIGTERM or Ctrl-C."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise click.ClickException(
            f"{error.name} is missing; run: pip install starlette uvicorn prometheus-client"
        ) from None
    from holdfast.observe.logs import set_up_logging
    from holdfast.runtime.loops import fastest_loop
    from holdfast.server.process import listen
    from holdfast.server.server import ServerSettings

    set_up_logging(log_level, "json" if as_json else log_format)
    with listen(host, port) as listener, asyncio.Runner(loop_factory=fastest_loop()) as runner:
        policy = RunPolicy(result_ttl_ms=result_ttl, dead_letter_ttl_ms=dead_letter_ttl)
        # As the Host header has them.
        called = tuple(f"[{name}]" if ":" in name else name.rstrip(".") for name in names)
        settings = ServerSettings(maintenance=maintenance, names=called, policy=policy)
        runner.run(_serve(listener, host, url, settings))


async def _serve(listener: socket.socket, host: str, url: str, settings: ServerSettings) -> None:
    from holdfast.server.auth import TokenGuard
    from holdfast.server.edge import is_loopback
    from holdfast.server.process import first_token, no_token, serve, shown
    from holdfast.server.server import Server
    from holdfast.stores.open import open_store
    from holdfast.version import __version__

    if not is_loopback(host) and missing_file(url) is not None:
        raise no_token(host)  # before the store is opened, which creates it
    store = open_store(url)
    try:
        token = await first_token(store, host)
    except BaseException:
        await store.close()
        raise
    if token is not None:
        # Not into the log, which others may read.
        click.echo(f"The first token, which may do everything and is not shown again:\n{token}")
    server = Server(store, TokenGuard(store), settings)
    _log.info("Holdfast %s: http://%s on %s", __version__, shown(*listener.getsockname()[:2]), store.url)
    await serve(server, listener)
