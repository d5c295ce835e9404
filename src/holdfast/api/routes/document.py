"""The OpenAPI document."""

from __future__ import annotations

import functools

import msgspec
from starlette.responses import Response

from holdfast.api.guard import PUBLIC
from holdfast.api.routing import Call, Routes

routes = Routes("document")


@routes.add("GET", "/openapi.json", PUBLIC, gives=dict)
async def show_document(_: Call) -> Response:
    """What there is here, in OpenAPI."""
    return Response(_document(), media_type="application/json")


@functools.cache
def _document() -> bytes:
    from holdfast.api.app import ROUTES
    from holdfast.api.documenting import openapi

    return msgspec.json.encode(openapi(ROUTES))
