"""Whether the gateway lives, whether it can work, and who asks."""

from __future__ import annotations

import logging

from holdfast.api.guard import ANYBODY_KNOWN, PUBLIC, Denied
from holdfast.api.routing import Call, Routes
from holdfast.errors import StoreError
from holdfast.wire import problems
from holdfast.wire.views import Health, Identity

log = logging.getLogger("holdfast.api")

routes = Routes("health")


@routes.add("GET", "/healthz", PUBLIC, gives=Health)
async def healthz(_: Call) -> Health:
    """Whether this process answers."""
    return Health(status="ok")


@routes.add("GET", "/readyz", PUBLIC, gives=Health)
async def readyz(call: Call) -> Health:
    """Whether the store answers too; 503 if not, and while the gateway shuts down."""
    try:
        await call.gateway.check_ready()
    except StoreError as error:
        log.warning("not ready: %s", error)
        raise Denied(problems.STORE_UNAVAILABLE.problem()) from None  # the store's address is not for everybody
    return Health(status="ok")


@routes.add("GET", "/v1/whoami", ANYBODY_KNOWN, gives=Identity)
async def whoami(call: Call) -> Identity:
    """Whose token this is, and what it may."""
    caller = call.caller
    partitions = await call.gateway.partitions()
    return Identity(name=caller.name, scopes=tuple(caller.scopes), partitions=len(partitions))
