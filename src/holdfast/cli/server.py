"""`holdfast server`: the store over HTTP."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from ipaddress import IPv6Address

import click

from holdfast.cli.options import log_options, url_option
from holdfast.observe.logs import LogFormat

_log = logging.getLogger("holdfast.api")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def host_name(value: str) -> str:
    """Reads the name or the address of a host, IPv6 with or without brackets."""
    from holdfast.stores.urloptions import known_host

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
    help="The address to listen on.",
)
@click.option("--port", type=click.IntRange(0, 65_535), default=8080, show_default=True, help="0 is any that is free.")
@click.option(
    "--allow-host",
    "names",
    type=host_name,
    multiple=True,
    metavar="NAME",
    help="A name that clients call it by, as behind a proxy; can be given again.",
)
@click.option("--upkeep/--no-upkeep", default=True, help="Promote, requeue, tick and prune, as a worker does.  [yes]")
@url_option
@log_options
def server(
    host: str,
    port: int,
    names: tuple[str, ...],
    upkeep: bool,
    url: str,
    log_level: str,
    log_format: LogFormat,
    as_json: bool,
) -> None:
    """Serve the store over HTTP until SIGTERM or Ctrl-C."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise click.ClickException(f"{error.name} is missing; pip install 'holdfast[server]'") from None
    from holdfast.api.serving import fastest_loop, listen
    from holdfast.observe.logs import set_up_logging

    set_up_logging(log_level, "json" if as_json else log_format)
    with listen(host, port) as listener, asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(_serve(listener, host, url, upkeep=upkeep, names=names))


async def _serve(listener: socket.socket, host: str, url: str, *, upkeep: bool, names: tuple[str, ...]) -> None:
    from holdfast.api.doors import first_token, make_guard
    from holdfast.api.gateway import Gateway, GatewaySettings
    from holdfast.api.serving import serve, shown
    from holdfast.stores.open import open_store
    from holdfast.version import __version__

    store = open_store(url)
    try:
        token = await first_token(store, host)
    except BaseException:
        await store.close()
        raise
    if token is not None:
        # Not into the log, which others may read.
        click.echo(f"The first token, which may do everything and is not shown again:\n{token}")
    # As the Host header has them.
    called = tuple(f"[{name}]" if ":" in name else name.rstrip(".") for name in names)
    gateway = Gateway(store, make_guard(store), GatewaySettings(upkeep=upkeep, names=called))
    _log.info("Holdfast %s: http://%s on %s", __version__, shown(*listener.getsockname()[:2]), store.url)
    await serve(gateway, listener)
