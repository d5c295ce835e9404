"""Health and metrics over HTTP: `/healthz`, `/readyz` and `/metrics`, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import re
from http import HTTPStatus
from types import TracebackType
from typing import Protocol, Self

import msgspec

from holdfast.errors import BadOption
from holdfast.observe.exposition import MISSING
from holdfast.worker.options import health_address
from holdfast.worker.vitals import Vitals

_log = logging.getLogger("holdfast.worker")

#: A probe is a line and a few headers, said at once; whatever takes longer or is larger is cut off.
PATIENCE_S = 2.0
MAX_REQUEST_BYTES = 8 * 1024
MAX_CONNECTIONS = 64


_ACCEPT = re.compile(rb"\r\naccept: *([^\r\n]*)", re.IGNORECASE)


class Metrics(Protocol):
    """What there is to count."""

    @property
    def on(self) -> bool:
        """Whether anything is counted at all."""
        ...

    async def page(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics in a format that the reader accepts, and its name."""
        ...


class HealthServer:
    """Serves while the block runs; without an address, nothing."""

    def __init__(self, address: str | None, vitals: Vitals, metrics: Metrics | None = None) -> None:
        self._address = address
        self._vitals = vitals
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
                async with asyncio.timeout(PATIENCE_S):
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
        checks = {b"/healthz": self._vitals.sick, b"/readyz": self._vitals.unready}
        if path not in checks and path != b"/metrics":
            return _response(HTTPStatus.NOT_FOUND, "there are /healthz, /readyz and /metrics")
        if method != b"GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "only GET", "Allow: GET\r\n")
        if path == b"/metrics":
            return await self._tell_metrics(request)
        reason = checks[path]()
        return _response(HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK, reason)

    async def _tell_metrics(self, request: bytes) -> bytes:
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
