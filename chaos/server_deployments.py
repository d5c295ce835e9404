"""`holdfast server` under test: producers and workers know nothing else; the checks at the end look behind them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from tests.remote.holdfast_server import HoldfastServer, holdfast_server
from tests.servers.flavours import DURABLE
from tests.servers.proxy import FaultProxy
from tests.servers.redis_server import RedisServer
from tests.servers.wire import AnyWire

from chaos.complaints import complaints_in
from chaos.faults import Deployment, Fault, drops, wait_seconds
from chaos.http_wire import HttpWire
from chaos.redis_records import keys_of
from chaos.stresses import SLOW, slow_line

#: Short enough that calls give up while a server is frozen, and are made again by those who made them.
_DEADLINE: Final = "2s"
_FROZEN_SECONDS: Final = 5.0
#: What producers, the stale settler and the checks at the end need; workers need less.
_LOAD: Final = ("enqueue:*", "work:*", "read")
_WORKER: Final = ("work:*",)
#: There are fewer replies than on the line to a server: one call does the work of several commands.
_DROP_EVERY: Final = (3, 7, 20)


def of_http_servers(server: RedisServer, http_servers: Sequence[HoldfastServer]) -> Deployment:
    """Servers before one Redis: the load calls the first of them, the workers call the last."""
    name = "server" if len(http_servers) == 1 else "servers"
    return _deployment(name, server, http_servers, str, _faults_of(server, http_servers))


def of_http_server_line(server: RedisServer, http_server: HoldfastServer, proxy: FaultProxy) -> Deployment:
    """A server behind a line that can be made bad, and that accepts connections even while the server is gone."""

    def cut(_key: str, _random: Random) -> str:
        return f"cut {proxy.cut()} connections"

    lossy = drops(proxy.strike, lambda: proxy.struck.dropped, _DROP_EVERY)
    faults = {**_faults_of(server, [http_server]), "drop_replies": lossy, "cut": cut}
    return _deployment("server-line", server, [http_server], proxy.url_for, faults, proxy.strike)


def _deployment(
    name: str,
    server: RedisServer,
    http_servers: Sequence[HoldfastServer],
    way: Callable[[str], str],
    faults: dict[str, Fault],
    heal_line: Callable[[], None] = lambda: None,
) -> Deployment:
    def heal() -> None:
        heal_line()
        server.heal()
        for http_server in http_servers:
            http_server.heal()

    first, last = http_servers[0], http_servers[-1]
    return Deployment(
        name,
        f"{way(first.url(*_LOAD))}?deadline={_DEADLINE}",
        keys_of(lambda: [server]),
        heal,
        faults,
        worker_url=f"{way(last.url(*_WORKER))}?deadline={_DEADLINE}",
        complaints=lambda: [line for http_server in http_servers for line in complaints_in(http_server.log())],
    )


def _faults_of(server: RedisServer, http_servers: Sequence[HoldfastServer]) -> dict[str, Fault]:
    def kill(http_server: HoldfastServer) -> str:
        http_server.kill()
        http_server.start()
        return f"{http_server}: killed, then started"

    def stop(http_server: HoldfastServer) -> str:
        code = http_server.stop()
        if code != 0:
            raise AssertionError(f"{http_server} ended with {code} when it was told to stop")
        http_server.start()
        return f"{http_server}: stopped, then started"

    def freeze(http_server: HoldfastServer) -> str:
        http_server.freeze()
        wait_seconds(_FROZEN_SECONDS)
        http_server.thaw()
        return f"{http_server}: frozen for {_FROZEN_SECONDS:g} s"

    def one_of_them(strike: Callable[[HoldfastServer], str], _key: str, random: Random) -> str:
        return strike(random.choice(http_servers))

    def kill_store(_key: str, _random: Random) -> str:
        server.restart(kill=True)
        return f"{server}: killed behind the server, then started"

    return {
        "kill_server": partial(one_of_them, kill),
        "stop_server": partial(one_of_them, stop),
        "freeze_server": partial(one_of_them, freeze),
        "kill_store": kill_store,
    }


@contextmanager
def deployed_server(_seed: int) -> Iterator[Deployment]:
    """A new server before a new Redis."""
    with _running(1) as (server, http_servers):
        yield of_http_servers(server, http_servers)


@contextmanager
def deployed_servers(_seed: int) -> Iterator[Deployment]:
    """Two of them before one server."""
    with _running(2) as (server, http_servers):
        yield of_http_servers(server, http_servers)


@contextmanager
def deployed_server_line(seed: int) -> Iterator[Deployment]:
    """A new server behind a proxy."""
    with _running(1) as (server, [http_server]), FaultProxy(http_server.address, seed=seed, wire=HttpWire) as proxy:
        yield of_http_server_line(server, http_server, proxy)


@contextmanager
def deployed_server_slow_line(seed: int) -> Iterator[Deployment]:
    """A new server whose workers are behind a slow line."""
    with _running(1) as (server, [http_server]), FaultProxy(http_server.address, seed=seed, wire=AnyWire) as proxy:
        plain = of_http_servers(server, [http_server])
        yield replace(
            plain,
            name="server-slow-line",
            url=http_server.url(*_LOAD),
            faults={},
            stresses={"slow_line": slow_line(proxy)},
            worker_url=proxy.url_for(http_server.url(*_WORKER)),
            **SLOW,
        )


@contextmanager
def _running(count: int) -> Iterator[tuple[RedisServer, list[HoldfastServer]]]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-servers-")))
        server = stack.enter_context(RedisServer(profile=DURABLE))
        url = f"{server.url}?durability=local"
        yield server, [stack.enter_context(holdfast_server(directory, url)) for _ in range(count)]
