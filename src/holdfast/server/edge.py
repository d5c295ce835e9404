"""Checks every request before its route, and turns every error into an answer.

Browsers can be made to send requests that their users know nothing of. A page of another site cannot read our answers,
since there is no CORS; but it could send a request that changes something, or use a DNS name that resolves to this
machine to become "the same site". Both are visible in headers that a page cannot forge: Origin, Sec-Fetch-Site, Host.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Collection, Iterable, Mapping
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import HoldfastError
from holdfast.server.auth import Denied
from holdfast.stores.remote import problems
from holdfast.stores.remote.limits import MAX_BATCH_BYTES
from holdfast.stores.remote.problems import Kind, Problem

log = logging.getLogger("holdfast.server")

_OF_STATUS = {404: problems.NOT_FOUND, 405: problems.METHOD_NOT_ALLOWED}
#: A route that needs another value, as a page needs its own policy, sets it, and that stays.
SECURITY_HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_TLS_ONLY: Final = (b"strict-transport-security", b"max-age=31536000")
#: Name and version of the server software help attackers only.
_SILENCED: Final = frozenset({b"server"})
Headers = list[tuple[bytes, bytes]]
#: Methods that change nothing; all others are checked.
_SAFE: Final = frozenset({"GET", "HEAD"})
_OWN_SITE: Final = frozenset({b"same-origin", b"none"})
_DEFAULT_PORTS: Final = (":80", ":443")
#: Of the address and the headers of a request.
MAX_HEAD_BYTES: Final = 32 * 1024
#: An answer of which a client reads nothing for this long is given up.
READ_SECONDS: Final = 30.0
#: A body that no route reads is dropped before the answer is sent, within these limits.
DROP_SECONDS: Final = 10.0
DROP_BYTES: Final = MAX_BATCH_BYTES
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
_CLOSE: Final = (b"connection", b"close")


# -- errors as answers ---------------------------------------------------------------------------------------------


class ClientGone(Exception):
    """The client has closed its connection."""


def problem_response(problem: Problem) -> Response:
    """The HTTP response of this problem."""
    headers = {} if problem.retry_after is None else {"Retry-After": str(problem.retry_after)}
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(problems.write_problem(problem), problem.status, headers, problems.MEDIA_TYPE)


def answer_to(error: Exception, what: str, *, tells_more: bool = False) -> Response:
    """The answer to a request that ended with this error; `what` names the request in the log.

    Only callers with `tells_more` see the address of the store, and how it fails.
    """
    if isinstance(error, Denied):
        return problem_response(error.problem)
    if isinstance(error, ClientGone):
        return Response(status_code=499)  # the client is gone
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
    """The same for requests without a route: an unknown address, a wrong method."""
    if not isinstance(error, HTTPException):
        return answer_to(error, f"{request.method} {request.url.path}")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        error.headers = {"Allow": ", ".join(sorted(_methods(request)))}
    kind = _OF_STATUS.get(error.status_code) or Kind("http", error.status_code, str(error.detail))
    response = problem_response(kind.problem(_detail(kind, request)))
    response.headers.update(error.headers or {})
    return response


def _methods(request: Request) -> set[str]:
    """The methods of all routes at this address."""
    matching = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in matching for method in getattr(route, "methods", None) or ()}


def _detail(kind: Kind, request: Request) -> str:
    if kind is problems.NOT_FOUND:
        return "see /openapi.json for all routes"
    return f"{request.method} is refused" if kind is problems.METHOD_NOT_ALLOWED else ""


def where(error: BaseException) -> str:
    """The class of an error and the places that it came through, without its message, which may quote a secret."""
    places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    return " < ".join([type(error).__name__, *reversed(places)])


# -- headers of every answer ---------------------------------------------------------------------------------------


def secured(headers: Iterable[tuple[bytes, bytes]], *, tls: bool) -> Headers:
    """The headers of an answer with ours among them."""
    given = [(name, value) for name, value in headers if name.lower() not in _SILENCED]
    names = {name.lower() for name, _ in given}
    ours = (*SECURITY_HEADERS, _TLS_ONLY) if tls else SECURITY_HEADERS
    return [*given, *(header for header in ours if header[0] not in names)]


# -- origins: requests that a browser was made to send -------------------------------------------------------------


def objection(scope: Mapping[str, Any], names: Collection[str]) -> Problem | None:
    """Why a request is refused, or None; `names` are the accepted host names, none for any."""
    hosts = _all(scope, b"host")
    if len(hosts) > 1 or (hosts and not _is_ours(hosts[0], scope, names)):
        return problems.WRONG_HOST.problem("accept this name with --allow-host")
    if scope["method"] in _SAFE:
        return None
    if any(site.lower() not in _OWN_SITE for site in _all(scope, b"sec-fetch-site")):
        return problems.FOREIGN_ORIGIN.problem("sent by a page of another site")
    if any(not hosts or _authority(origin) != _plain(_text(hosts[0])) for origin in _all(scope, b"origin")):
        return problems.FOREIGN_ORIGIN.problem("the Origin header names another site")
    return None


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine can reach the address, or an address of that name."""
    try:
        return ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def _is_ours(host: bytes, scope: Mapping[str, Any], names: Collection[str]) -> bool:
    name = _name(_text(host))
    if name in names or is_loopback(name):
        return True
    if names:
        return False
    # A foreign name for a loopback socket comes from a browser that was given a wrong address (DNS rebinding).
    here = scope.get("server")
    return here is None or here[1] is None or not is_loopback(here[0])


def _all(scope: Mapping[str, Any], name: bytes) -> list[bytes]:
    return [value for known, value in scope["headers"] if known == name]


def _text(value: bytes) -> str:
    return value.decode("latin-1").strip().lower()


def _name(host: str) -> str:
    """The name in `name:port` or `[address]:port`."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].rstrip(".")


def _authority(origin: bytes) -> str:
    """Host and port of an origin; `null` matches no host."""
    scheme, separator, authority = _text(origin).partition("://")
    return _plain(authority) if separator and scheme in {"http", "https"} else "null"


def _plain(authority: str) -> str:
    """Without the default port of HTTP or HTTPS: a proxy may have ended the TLS."""
    for port in _DEFAULT_PORTS:
        authority = authority.removesuffix(port)
    return authority


# -- the middleware ------------------------------------------------------------------------------------------------


class Edge:
    """ASGI middleware: refuses requests that no route should see, and bounds what slow or rude clients cost.

    A request may be answered before its body was read, because of its token for example. The body is then read and
    dropped first, within limits: a client that sends everything before it reads would else see a closed connection
    in place of the answer.
    """

    def __init__(self, app: ASGIApp, names: Collection[str] = ()) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        try:
            problem = self._refusal(scope, exchange)
            if problem is None:
                await self._app(scope, exchange.receive, exchange.send)
            else:
                await problem_response(problem)(scope, exchange.receive, exchange.send)
        except _NotRead:
            log.warning("a client has read nothing of its answer for %g s; its connection is closed", READ_SECONDS)
        except Exception as error:  # noqa: BLE001  (the server would log its message, which may quote a secret)
            log.error("%s %s: %s", scope["method"], "a request", where(error))
            if not exchange.has_begun:
                await problem_response(problems.INTERNAL.problem())(scope, exchange.receive, exchange.send)

    def _refusal(self, scope: Scope, exchange: _Exchange) -> Problem | None:
        if exchange.is_ambiguous:
            return problems.NO_HTTP.problem("Content-Length and Transfer-Encoding exclude each other")
        size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > MAX_HEAD_BYTES:
            return problems.HEAD_TOO_LARGE.problem(f"the limit is {MAX_HEAD_BYTES:,} bytes, the address included")
        return objection(scope, self._names)


class _NotRead(Exception):
    """The client does not read its answer."""


class _Exchange:
    """One request and its answer."""

    __slots__ = (
        "_body_bytes",
        "_expects",
        "_has_read_all",
        "_receive",
        "_scheme",
        "_send",
        "has_begun",
        "is_ambiguous",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._scheme = scope.get("scheme")
        given = dict(scope["headers"])
        length = given.get(b"content-length", b"")
        #: As declared; None for a body that ends when it ends.
        self._body_bytes = None if b"transfer-encoding" in given else int(length) if length.isdigit() else 0
        self._has_read_all = self._body_bytes == 0
        #: Whether the length of the body is declared in two ways: a proxy in front may have gone by the other one.
        self.is_ambiguous = given.keys() >= _FRAMING
        #: Whether the client waits for "100 Continue" before it sends the body.
        self._expects = b"expect" in given
        self.has_begun = False

    async def receive(self) -> Message:
        """The next part of the body, or word that the client has gone."""
        self._expects = False
        message = await self._receive()
        if not message.get("more_body", False):
            self._has_read_all = True
        return message

    async def send(self, message: Message) -> None:
        """Part of the answer; fails if the client does not read."""
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            if not self._has_read_all and message["status"] != HTTPStatus.REQUEST_TIMEOUT:
                await self._drop_body()
            if not self._has_read_all or self.is_ambiguous:  # what comes next on the connection is not a request
                headers = [*(each for each in headers if each[0].lower() != b"connection"), _CLOSE]
            self.has_begun = True
            message["headers"] = secured(headers, tls=self._scheme == "https")
        try:
            async with asyncio.timeout(READ_SECONDS):
                await self._send(message)
        except TimeoutError:
            raise _NotRead from None

    async def _drop_body(self) -> None:
        if self._expects or (self._body_bytes or 0) > DROP_BYTES:
            return
        dropped = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DROP_SECONDS):
                while not self._has_read_all and dropped <= DROP_BYTES:
                    dropped += len((await self.receive()).get("body", b""))
