"""What Prometheus reads."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.api.guard import Denied, Rule, Scope
from holdfast.api.routing import Call, Routes
from holdfast.observe.exposition import MISSING, available
from holdfast.wire import problems

routes = Routes("metrics")


@routes.add("GET", "/metrics", Rule((Scope.READ, Scope.MANAGE, Scope.ADMIN)))
async def metrics(call: Call) -> Response:
    """Counters, histograms and gauges as text, in the format that the reader accepts."""
    if not available():
        raise Denied(problems.NOT_FOUND.problem(MISSING))
    body, content_type = await call.gateway.metrics.page(call.request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})
