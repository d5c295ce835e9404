"""What changes, as it changes."""

from __future__ import annotations

from starlette.responses import Response, StreamingResponse

from holdfast.api.guard import Rule, Scope
from holdfast.api.routing import Call, Routes

routes = Routes("events")


@routes.add("GET", "/v1/events", Rule((Scope.READ,)))
async def listen(call: Call) -> Response:
    """Queues and workers as server-sent events: all of them first, then those that change."""
    if call.request.method == "HEAD":  # which the framework lets through to every GET
        return Response(media_type="text/event-stream")
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(
        await call.gateway.feed.listen(call.caller), headers=headers, media_type="text/event-stream"
    )
