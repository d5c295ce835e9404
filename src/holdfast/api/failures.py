"""How an error leaves the gateway: as a problem, without a traceback, whatever it was."""

from __future__ import annotations

import logging
import traceback
from http import HTTPStatus

import msgspec
from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from holdfast.api.guard import Denied
from holdfast.api.presence import ClientGone
from holdfast.errors import HoldfastError
from holdfast.wire import problems
from holdfast.wire.problems import Kind, Problem

log = logging.getLogger("holdfast.api")

#: Refused before their bodies were here: what comes after them on the connection is not a request.
_UNREAD = frozenset({problems.TOO_SLOW.type, problems.BODY_TOO_LARGE.type})
_OF_STATUS = {404: problems.NOT_FOUND, 405: problems.METHOD_NOT_ALLOWED}


def problem_response(problem: Problem) -> Response:
    """The answer that this problem is."""
    headers = {} if problem.retry_after is None else {"Retry-After": str(problem.retry_after)}
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if problem.type in _UNREAD:
        headers["Connection"] = "close"
    return Response(problems.write_problem(problem), problem.status, headers, problems.MEDIA_TYPE)


def answer_to(error: Exception, what: str, *, tells_more: bool = False) -> Response:
    """The answer to a request that ended with this error; `what` names the request in the log.

    Where the store is, and how it fails, is for those who are told more.
    """
    if isinstance(error, Denied):
        return problem_response(error.problem)
    if isinstance(error, ClientGone):
        return Response(status_code=499)  # read by nobody
    if isinstance(error, HoldfastError):
        problem = problems.problem_of(error)
        if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("%s: %s: %s", what, type(error).__name__, error)
        hidden = problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not tells_more
        return problem_response(replace(problem, detail="") if hidden else problem)
    if isinstance(error, msgspec.ValidationError):
        return problem_response(problems.INVALID.problem(str(error)))
    log.error("%s: %s", what, where(error))
    return problem_response(problems.INTERNAL.problem())


async def answer_of_framework(request: Request, error: Exception) -> Response:
    """The same for what never came to a route: an unknown address, a wrong method."""
    if not isinstance(error, HTTPException):
        return answer_to(error, f"{request.method} {request.url.path}")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        error.headers = {"Allow": ", ".join(sorted(_methods(request)))}
    kind = _OF_STATUS.get(error.status_code) or Kind("http", error.status_code, str(error.detail))
    response = problem_response(kind.problem(_detail(kind, request)))
    response.headers.update(error.headers or {})
    return response


def _methods(request: Request) -> set[str]:
    """All that this address takes, whatever routes it takes it by."""
    matching = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in matching for method in getattr(route, "methods", None) or ()}


def _detail(kind: Kind, request: Request) -> str:
    if kind is problems.NOT_FOUND:
        return "see /openapi.json for what there is"
    return f"{request.method} is refused" if kind is problems.METHOD_NOT_ALLOWED else ""


def where(error: BaseException) -> str:
    """The class of an error and the places that it came through, without its message, which may quote a secret."""
    places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    return " < ".join([type(error).__name__, *reversed(places)])
