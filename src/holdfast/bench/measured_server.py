"""A server of the bench's own, in front of the store that is measured."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from holdfast.admin import tokens
from holdfast.bench.processes import MeasuredProcess, measured
from holdfast.bench.servers import free_port
from holdfast.bench.setting import Setting
from holdfast.clock import SystemClock
from holdfast.errors import StoreUnavailable
from holdfast.observe.metrics import STORE_SECONDS

_SCENARIO: Final = "server"
_START_S: Final = 15.0
_LOOK_S: Final = 5.0
#: The loopback must not be looked for behind a proxy.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    """A `holdfast server` with a token for everything."""

    process: MeasuredProcess
    port: int
    token: str
    #: The bench with the server as its store.
    setting: Setting

    async def store_calls(self) -> dict[str, float]:
        """How many calls the store has answered so far, by method; those that wait for a wake-up are not counted."""
        text = await asyncio.to_thread(self._get, "/metrics")
        found = re.findall(rf'^{STORE_SECONDS.name}_count\{{method="(\w+)"\}} (\S+)$', text, re.MULTILINE)
        return {method: float(count) for method, count in found}

    async def until_ready(self) -> None:
        """Returns as soon as it answers."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            self.process.check()
            try:
                await asyncio.to_thread(self._get, "/readyz")
            except OSError:
                await asyncio.sleep(0.05)
            else:
                return
        raise StoreUnavailable(f"the server did not answer within {_START_S:g} s")

    def _get(self, path: str) -> str:
        request = urllib.request.Request(  # our own
            f"http://127.0.0.1:{self.port}{path}", headers={"Authorization": f"Bearer {self.token}"}
        )
        with _OPENER.open(request, timeout=_LOOK_S) as answer:
            text: str = answer.read().decode()
            return text


@asynccontextmanager
async def measured_server(setting: Setting) -> AsyncIterator[MeasuredServer]:
    """A server that answers; it is stopped after the block."""
    async with setting.store(_SCENARIO) as store:
        token = str(await tokens.create(store, ["admin"], now_ms=SystemClock().now_ms(), note="bench"))
    port = free_port()
    words = ["server", "--port", str(port)]
    with measured(words, setting.store_url(_SCENARIO), setting.directory / "server.txt") as process:
        behind = dataclasses.replace(setting, url=f"http://{token}@127.0.0.1:{port}", beside=None)
        server = MeasuredServer(process, port, token, behind)
        await server.until_ready()
        yield server
