"""The health of a worker and its metrics: over HTTP (`/healthz`, `/readyz`, `/metrics`) and for systemd."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from http import HTTPStatus
from types import TracebackType
from typing import Self

import msgspec

from holdfast.clock import Clock
from holdfast.core.durations import format_ms
from holdfast.errors import BadOption
from holdfast.observe.backlog import Backlog, Gauge
from holdfast.observe.exposition import MISSING, page
from holdfast.observe.metrics import MAINTENANCE_LED, WORKER_CHILDREN, WORKER_MEMORY, WORKER_SLOTS
from holdfast.observe.observed_store import Leaderships, ObservedStore
from holdfast.stores.contract import Store
from holdfast.worker.options import health_address
from holdfast.worker.supervisor.heartbeat import Heartbeat
from holdfast.worker.supervisor.pool import ChildPool
from holdfast.worker.supervisor.process import ChildProcess

_log = logging.getLogger("holdfast.worker")

#: A probe is a line and a few headers, sent at once; a request that takes longer or is larger is cut off.
REQUEST_TIMEOUT_S = 2.0
MAX_REQUEST_BYTES = 8 * 1024
MAX_CONNECTIONS = 64


_ACCEPT = re.compile(rb"\r\naccept: *([^\r\n]*)", re.IGNORECASE)

_STATUS_EVERY_S = 5.0


class WorkerHealth:
    """Whether a worker lives, and whether it gets work, from what the supervisor knows: user code may block a child."""

    def __init__(self, ready_within_ms: int, clock: Clock, pool: ChildPool) -> None:
        self._ready_within_ms = ready_within_ms
        self._clock = clock
        self._pool = pool
        self._heartbeat: Heartbeat | None = None

    def opened(self, heartbeat: Heartbeat) -> None:
        """The worker is announced at the store."""
        self._heartbeat = heartbeat

    def unhealthy(self) -> str:
        """Why it should be restarted; "" while it lives."""
        if self._pool.children() or self._pool.closed:
            return ""
        return "no child runs; the log says why"

    def not_ready(self) -> str:
        """Why it does not work; "" while it does."""
        if self._pool.closed or self._pool.drained:
            return "draining"
        if self._heartbeat is None:
            return "starting"
        if self._recent(self._pool.reserved_at_ms) or self._full(self._heartbeat):
            return ""
        if self._pool.reserved_at_ms is None:
            return "no reserve has succeeded yet"
        silent_ms = self._clock.monotonic_ms() - self._pool.reserved_at_ms
        return f"no reserve has succeeded for {format_ms(silent_ms // 1000 * 1000)}"

    def status(self) -> str:
        """One line for people."""
        running = sum(child.running for child in self._pool.children())
        reason = self.unhealthy() or self.not_ready()
        return f"{f'not ready: {reason}' if reason else 'ready'}; tasks running: {running}"

    def _recent(self, moment_ms: int | None) -> bool:
        return moment_ms is not None and self._clock.monotonic_ms() - moment_ms <= self._ready_within_ms

    def _full(self, heartbeat: Heartbeat) -> bool:
        """A child without a free slot reserves nothing; that its claims are renewed has to do."""
        return self._recent(heartbeat.succeeded_at_ms) and any(map(self._is_full, self._pool.children()))

    def _is_full(self, child: ChildProcess) -> bool:
        return child.running >= (1 if child.alone else self._pool.concurrency.current)


# -- metrics -----------------------------------------------------------------------------------------------------


class WorkerMetrics:
    """The metrics of a worker: counts of its children, its own calls to the store, and gauges of the store.

    Gauges of the whole store come only from a worker that does maintenance: of many workers, few do.
    """

    def __init__(self, pool: ChildPool, clock: Clock, *, on: bool) -> None:
        #: Whether anything is counted at all.
        self.on = on
        self._pool = pool
        self._clock = clock
        self._leaderships = Leaderships()
        self._backlog: Backlog | None = None

    def observed(self, store: Store) -> Store:
        """The supervisor's store, its calls counted too."""
        if not self.on:
            return store
        observed = ObservedStore(store, self._pool.tally, self._leaderships)
        self._backlog = Backlog(observed, self._clock)
        return observed

    async def page(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics in a format that the reader accepts, and its name."""
        held = self._leaderships.held()
        gauges = [*self._own(), (MAINTENANCE_LED, (), float(held))]
        if held and self._backlog is not None:
            gauges += await self._backlog.gauges()
        return page(self._pool.tally, gauges, accept)

    def _own(self) -> list[Gauge]:
        children = list(self._pool.children())
        serving = [child for child in children if child.serving]
        busy = sum(child.running for child in children)
        free = sum(max(0, child.slots - child.running) for child in serving)
        return [
            (WORKER_SLOTS, ("busy",), busy),
            (WORKER_SLOTS, ("free",), 0 if self._pool.closed else free),
            (WORKER_CHILDREN, (), len(children)),
            (WORKER_MEMORY, (), self._pool.memory_bytes()),
        ]


# -- over HTTP ---------------------------------------------------------------------------------------------------


class HealthServer:
    """Serves while the block runs; without an address, nothing."""

    def __init__(self, address: str | None, health: WorkerHealth, metrics: WorkerMetrics | None = None) -> None:
        self._address = address
        self._health = health
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._connections = 0

    async def __aenter__(self) -> Self:
        if self._address is None:
            return self
        host, port = health_address(self._address)
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_REQUEST_BYTES)
        except OSError as error:
            reason = error.strerror or str(error)
            raise BadOption(f"health: cannot listen on {self._address}: {reason}; name another port") from None
        host, port = self._server.sockets[0].getsockname()[:2]
        _log.info("health: http://%s:%d/healthz, /readyz and /metrics", f"[{host}]" if ":" in host else host, port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= MAX_CONNECTIONS:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    writer.write(await self._answer(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            return
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        checks = {b"/healthz": self._health.unhealthy, b"/readyz": self._health.not_ready}
        if path not in checks and path != b"/metrics":
            return _response(HTTPStatus.NOT_FOUND, "there are /healthz, /readyz and /metrics")
        if method != b"GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "only GET", "Allow: GET\r\n")
        if path == b"/metrics":
            return await self._metrics_page(request)
        reason = checks[path]()
        return _response(HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK, reason)

    async def _metrics_page(self, request: bytes) -> bytes:
        if self._metrics is None or not self._metrics.on:
            return _response(HTTPStatus.NOT_IMPLEMENTED, MISSING)
        accepted = _ACCEPT.search(request)
        body, content_type = await self._metrics.page(accepted[1].decode("latin-1") if accepted else "")
        return _with_head(HTTPStatus.OK, body, content_type)


def _response(status: HTTPStatus, reason: str, headers: str = "") -> bytes:
    body = msgspec.json.encode({"status": "ok"} if status is HTTPStatus.OK else {"status": "no", "reason": reason})
    return _with_head(status, body + b"\n", "application/json", headers)


def _with_head(status: HTTPStatus, body: bytes, content_type: str, headers: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\n{headers}Connection: close\r\n\r\n"
    )
    return head.encode() + body


# -- for systemd -------------------------------------------------------------------------------------------------


class Systemd:
    """Sends what `sd_notify` would; without a socket to send to, nothing."""

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        self._address = address
        self._watchdog_s = watchdog_s
        self._status = ""
        self._ready = False

    @classmethod
    def from_environment(cls) -> Systemd:
        """As systemd asks for; removed from the environment, so that no child notifies systemd."""
        address = os.environ.pop("NOTIFY_SOCKET", None)
        microseconds, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
        watched = microseconds.isdecimal() and pid in ("", str(os.getpid()))
        return cls(address, int(microseconds) / 1_000_000 if watched else None)

    def ready(self) -> None:
        """The worker is at work; only the first time is of interest."""
        if not self._ready:
            self._ready = True
            self._send("READY=1")

    def stopping(self) -> None:
        """The worker is about to end."""
        self._send("STOPPING=1\nSTATUS=draining")

    async def keep_informed(self, health: WorkerHealth) -> None:
        """Goes on until cancelled: sends the status, and while the worker is healthy, resets the watchdog."""
        while self._address is not None:
            if self._watchdog_s and not health.unhealthy():
                self._send("WATCHDOG=1")
            if (status := health.status()) != self._status:
                self._status = status
                self._send(f"STATUS={status}")
            await asyncio.sleep(min(_STATUS_EVERY_S, (self._watchdog_s or _STATUS_EVERY_S * 2) / 2))

    def _send(self, text: str) -> None:
        if self._address is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(text.encode(), address)
        except OSError as error:
            _log.debug("systemd was not told %r: %s", text, error)
