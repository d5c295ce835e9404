"""The ASGI app of a server, and the routes about the server itself."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from holdfast.errors import StoreError
from holdfast.observe.exposition import MISSING, available
from holdfast.server import (
    claims,
    enqueue,
    operate,
    schedules,
    store_rpc,
    store_rpc_documents,
    store_rpc_maintenance,
    tasks,
)
from holdfast.server.auth import ANYBODY_KNOWN, PUBLIC, Denied, Rule, Scope
from holdfast.server.edge import Edge, answer_of_framework
from holdfast.server.responses import Health, Identity
from holdfast.server.routing import Call, Route, Routes, endpoint
from holdfast.server.server import Server
from holdfast.stores.remote import problems

log = logging.getLogger("holdfast.server")

health_routes = Routes("health")
metrics_routes = Routes("metrics")
document_routes = Routes("document")


@health_routes.add("GET", "/healthz", PUBLIC, gives=Health)
async def healthz(_: Call) -> Health:
    """Liveness: answers while the process does."""
    return Health(status="ok")


@health_routes.add("GET", "/readyz", PUBLIC, gives=Health)
async def readyz(call: Call) -> Health:
    """Whether the store answers too; 503 if not, and while the server shuts down."""
    try:
        await call.server.check_ready()
    except StoreError as error:
        log.warning("not ready: %s", error)
        raise Denied(
            problems.STORE_UNAVAILABLE.problem()
        ) from None  # anonymous callers are not told the address of the store
    return Health(status="ok")


@health_routes.add("GET", "/v1/whoami", ANYBODY_KNOWN, gives=Identity)
async def whoami(call: Call) -> Identity:
    """The id and the scopes of the token."""
    caller = call.caller
    partitions = await call.server.partitions()
    return Identity(name=caller.name, scopes=tuple(caller.scopes), partitions=len(partitions))


@metrics_routes.add("GET", "/metrics", Rule((Scope.READ, Scope.MANAGE, Scope.ADMIN)))
async def metrics(call: Call) -> Response:
    """Counters, histograms and gauges as text, in the format that the reader accepts."""
    if not available():
        raise Denied(problems.NOT_FOUND.problem(MISSING))
    body, content_type = await call.server.metrics.page(call.request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})


@document_routes.add("GET", "/openapi.json", PUBLIC, gives=dict)
async def show_document(_: Call) -> Response:
    """The OpenAPI document."""
    return Response(_document(), media_type="application/json")


@functools.cache
def _document() -> bytes:
    from holdfast.server.openapi import openapi

    return msgspec.json.encode(openapi(ROUTES))


_TABLES = (
    enqueue.routes,
    tasks.routes,
    claims.routes,
    operate.dead_letter_routes,
    schedules.routes,
    operate.queue_routes,
    operate.worker_routes,
    operate.partition_routes,
    operate.event_routes,
    health_routes,
    metrics_routes,
    document_routes,
    store_rpc.routes,
    store_rpc_documents.routes,
    store_rpc_maintenance.routes,
)
_BUSY = (store_rpc.routes.tag, claims.routes.tag)
#: Every route there is; none is made anywhere else.
ROUTES: tuple[Route, ...] = tuple(route for table in _TABLES for route in table.routes)


def make_app(server: Server) -> Starlette:
    """The HTTP API of a server, which is opened and closed with the app."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[Mapping[str, object]]:
        async with server.opened() as state:
            yield state

    # Routes are tried one after the other: those that busy workers call come first.
    ordered = sorted(ROUTES, key=lambda route: route.tag not in _BUSY)
    app = Starlette(
        routes=[StarletteRoute(route.path, endpoint(server, route), methods=[route.method]) for route in ordered],
        middleware=[Middleware(Edge, names=server.settings.names)],
        exception_handlers={HTTPException: answer_of_framework, Exception: answer_of_framework},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app
