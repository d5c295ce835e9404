"""From a gateway to an ASGI app."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from holdfast.api.edge import Edge
from holdfast.api.failures import answer_of_framework
from holdfast.api.gateway import Gateway
from holdfast.api.routes import (
    claims,
    dead_letters,
    document,
    events,
    health,
    metrics,
    partitions,
    queues,
    schedules,
    store_calls,
    store_documents,
    store_upkeep,
    tasks,
    workers,
)
from holdfast.api.routing import Route, endpoint
from holdfast.version import __version__

_FILES = (
    tasks,
    claims,
    dead_letters,
    schedules,
    queues,
    workers,
    partitions,
    events,
    health,
    metrics,
    document,
    store_calls,
    store_documents,
    store_upkeep,
)
#: Newer versions of the framework put addresses and the messages of errors, which may have secrets, into spans and logs
#: wherever OpenTelemetry is set up; older ones take this for an option of somebody else.
_SILENT: Final[Any] = {"tracing": False, "metrics": False, "logs": False}
_BUSY = (store_calls.routes.tag, claims.routes.tag)
#: Every route there is; none is made anywhere else.
ROUTES: tuple[Route, ...] = tuple(route for file in _FILES for route in file.routes.routes)


def make_api(gateway: Gateway) -> FastAPI:
    """The HTTP API over a gateway, which is opened and closed with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[Mapping[str, object]]:
        async with gateway.opened() as state:
            yield state

    api = FastAPI(
        title="Holdfast",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        telemetry=_SILENT,
        exception_handlers={HTTPException: answer_of_framework, Exception: answer_of_framework},
    )
    api.add_middleware(Edge, names=gateway.settings.names)
    # They are tried one after the other: those that busy workers call come first. No dependencies, models or other
    # machinery of the framework: a route here checks, reads and answers by itself, and costs a third less.
    for route in sorted(ROUTES, key=lambda route: route.tag not in _BUSY):
        api.add_route(route.path, endpoint(gateway, route), methods=[route.method])
    return api
