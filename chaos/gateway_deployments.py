"""Gateways under test: all who produce and work know nothing but them; the checks at the end look behind them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from tests.remote.gateway_process import GatewayProcess, running_gateway
from tests.servers.flavours import DURABLE
from tests.servers.proxy import FaultProxy
from tests.servers.redis_server import RedisServer
from tests.servers.wire import AnyWire

from chaos.complaints import complaints_in
from chaos.faults import Deployment, Fault, drops, wait_seconds
from chaos.http_wire import HttpWire
from chaos.redis_records import keys_of
from chaos.stresses import SLOW, slow_line

#: Short enough that calls give up while a gateway is frozen, and are made again by those who made them.
_DEADLINE: Final = "2s"
_FROZEN_SECONDS: Final = 5.0
#: What producers, the stale settler and the checks at the end need; workers need less.
_LOAD: Final = ("enqueue:*", "work:*", "read")
_WORKER: Final = ("work:*",)
#: There are fewer replies than on the line to a server: one call does the work of several commands.
_DROP_EVERY: Final = (3, 7, 20)


def of_gateways(server: RedisServer, gateways: Sequence[GatewayProcess]) -> Deployment:
    """Gateways before one server: the load calls the first of them, the workers call the last."""
    name = "gateway" if len(gateways) == 1 else "gateways"
    return _deployment(name, server, gateways, str, _faults_of(server, gateways))


def of_gateway_line(server: RedisServer, gateway: GatewayProcess, proxy: FaultProxy) -> Deployment:
    """A gateway behind a line that can be made bad, and that accepts connections even while the gateway is gone."""

    def cut(_key: str, _random: Random) -> str:
        return f"cut {proxy.cut()} connections"

    lossy = drops(proxy.strike, lambda: proxy.struck.dropped, _DROP_EVERY)
    faults = {**_faults_of(server, [gateway]), "drop_replies": lossy, "cut": cut}
    return _deployment("gateway-line", server, [gateway], proxy.url_for, faults, proxy.strike)


def _deployment(
    name: str,
    server: RedisServer,
    gateways: Sequence[GatewayProcess],
    way: Callable[[str], str],
    faults: dict[str, Fault],
    heal_line: Callable[[], None] = lambda: None,
) -> Deployment:
    def heal() -> None:
        heal_line()
        server.heal()
        for gateway in gateways:
            gateway.heal()

    first, last = gateways[0], gateways[-1]
    return Deployment(
        name,
        f"{way(first.url(*_LOAD))}?deadline={_DEADLINE}",
        keys_of(lambda: [server]),
        heal,
        faults,
        worker_url=f"{way(last.url(*_WORKER))}?deadline={_DEADLINE}",
        complaints=lambda: [line for gateway in gateways for line in complaints_in(gateway.log())],
    )


def _faults_of(server: RedisServer, gateways: Sequence[GatewayProcess]) -> dict[str, Fault]:
    def kill(gateway: GatewayProcess) -> str:
        gateway.kill()
        gateway.start()
        return f"{gateway}: killed, then started"

    def stop(gateway: GatewayProcess) -> str:
        code = gateway.stop()
        if code != 0:
            raise AssertionError(f"{gateway} ended with {code} when it was told to stop")
        gateway.start()
        return f"{gateway}: stopped, then started"

    def freeze(gateway: GatewayProcess) -> str:
        gateway.freeze()
        wait_seconds(_FROZEN_SECONDS)
        gateway.thaw()
        return f"{gateway}: frozen for {_FROZEN_SECONDS:g} s"

    def one_of_them(strike: Callable[[GatewayProcess], str], _key: str, random: Random) -> str:
        return strike(random.choice(gateways))

    def kill_store(_key: str, _random: Random) -> str:
        server.restart(kill=True)
        return f"{server}: killed behind the gateway, then started"

    return {
        "kill_gateway": partial(one_of_them, kill),
        "stop_gateway": partial(one_of_them, stop),
        "freeze_gateway": partial(one_of_them, freeze),
        "kill_store": kill_store,
    }


@contextmanager
def deployed_gateway(_seed: int) -> Iterator[Deployment]:
    """A new gateway before a new server."""
    with _running(1) as (server, gateways):
        yield of_gateways(server, gateways)


@contextmanager
def deployed_gateways(_seed: int) -> Iterator[Deployment]:
    """Two of them before one server."""
    with _running(2) as (server, gateways):
        yield of_gateways(server, gateways)


@contextmanager
def deployed_gateway_line(seed: int) -> Iterator[Deployment]:
    """A new gateway behind a proxy."""
    with _running(1) as (server, [gateway]), FaultProxy(gateway.address, seed=seed, wire=HttpWire) as proxy:
        yield of_gateway_line(server, gateway, proxy)


@contextmanager
def deployed_gateway_slow_line(seed: int) -> Iterator[Deployment]:
    """A new gateway whose workers are behind a slow line."""
    with _running(1) as (server, [gateway]), FaultProxy(gateway.address, seed=seed, wire=AnyWire) as proxy:
        plain = of_gateways(server, [gateway])
        yield replace(
            plain,
            name="gateway-slow-line",
            url=gateway.url(*_LOAD),
            faults={},
            stresses={"slow_line": slow_line(proxy)},
            worker_url=proxy.url_for(gateway.url(*_WORKER)),
            **SLOW,
        )


@contextmanager
def _running(count: int) -> Iterator[tuple[RedisServer, list[GatewayProcess]]]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-gateways-")))
        server = stack.enter_context(RedisServer(profile=DURABLE))
        url = f"{server.url}?durability=local"
        yield server, [stack.enter_context(running_gateway(directory, url)) for _ in range(count)]
