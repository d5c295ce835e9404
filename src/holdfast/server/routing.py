"""A route: an address, the rule for its callers, what it takes and gives. There is no other way to make one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.observe.tracing import note_request
from holdfast.server.auth import Caller, Denied, Rule, Scope
from holdfast.server.bodies import CheckItem, bad_json, decoder, read_json
from holdfast.server.bodies import OneOf as OneOf  # noqa: PLC0414  (imported from here by the routes)
from holdfast.server.budgets import Share
from holdfast.server.edge import answer_to, problem_response
from holdfast.server.server import Server
from holdfast.stores.remote import problems
from holdfast.stores.remote.calls import LEFT_OUT
from holdfast.stores.remote.limits import SMALL_BODY_BYTES

Method = Literal["GET", "POST", "PUT", "DELETE"]
Handler = Callable[..., Awaitable[Any]]
Reader = Callable[[Request, Share], Awaitable[Any]]

_encode = msgspec.json.Encoder().encode
#: Parts in which a long answer is sent; the next one waits until the client has read.
_PART_BYTES: Final = 256 * 1024


class Call:
    """One authenticated request."""

    __slots__ = ("answer_share", "caller", "left_out", "request", "rule", "server", "store")

    def __init__(self, server: Server, request: Request, caller: Caller, rule: Rule) -> None:
        #: Memory for its answer: reserved before a large answer is read from the store.
        self.answer_share = server.answer_room.share(caller.name)
        self.server = server
        self.store = server.store
        self.request = request
        self.caller = caller
        self.rule = rule
        #: The partitions that the answer leaves out, because the client has asked for what there is.
        self.left_out: Mapping[int, object] = {}

    def path(self, name: str) -> str:
        """A parameter of the path."""
        value: str = self.request.path_params[name]
        return value

    def may(self, queue: str) -> bool:
        """Whether one of the scopes that the route asks for is the caller's for this queue."""
        return any(self.caller.may(scope, queue) for scope in self.rule.scopes)

    def demand(self, queue: str) -> None:
        """Refuses the request if it is about a queue that is not the caller's."""
        if not self.may(queue):
            raise Denied(problems.FORBIDDEN.problem(f"this token may not do that in queue {queue}"))


class Created(msgspec.Struct, frozen=True):
    """An answer with status 201."""

    value: Any


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the table from which the app, its OpenAPI document and the list of rules are made."""

    method: Method
    path: str
    rule: Rule
    handler: Handler
    #: The struct that the body (of a GET: the query) must fit; None: there is none.
    takes: Any = None
    #: What the answer is; None for one that the handler makes itself.
    gives: Any = None
    #: Whether its body may be that of a batch.
    batch: bool = False
    #: Refuses an item of a large batch before the next one is decoded.
    check_item: CheckItem | None = None
    #: Whether it may answer with 201.
    creates: bool = False
    tag: str = ""

    @property
    def reads_query(self) -> bool:
        """Whether what it takes comes in the query, not in a body."""
        return self.takes is not None and self.method in ("GET", "DELETE")

    @property
    def name(self) -> str:
        """Its name in the OpenAPI document."""
        return self.handler.__name__


class Routes:
    """The routes of one file."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.routes: list[Route] = []

    def add(
        self, method: Method, path: str, rule: Rule, *, takes: Any = None, gives: Any = None, **more: Any
    ) -> Callable[[Handler], Handler]:
        """Declares the function below it as the handler of this address."""

        def declare(handler: Handler) -> Handler:
            self.routes.append(
                Route(
                    method=method,
                    path=path,
                    rule=rule,
                    handler=handler,
                    takes=takes,
                    gives=gives,
                    tag=self.tag,
                    **more,
                )
            )
            return handler

        return declare


def endpoint(server: Server, route: Route) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint for Starlette: authenticate, read the body, call the handler, answer; errors become problems."""
    read = _reader(server, route)

    async def serve(request: Request) -> Response:
        note_request(request.headers.get("traceparent"), request.path_params.get("task_id"))
        caller: Caller | None = None
        call: Call | None = None
        try:
            if server.leaving and not route.rule.public:
                return problem_response(problems.SHUTTING_DOWN.problem())
            caller = await server.guard.check(request, route.rule)
            call = Call(server, request, caller, route.rule)
            # The body is in memory until the request is answered.
            with server.body_room.share(caller.name) as share:
                answer = await (
                    route.handler(call) if read is None else route.handler(call, await read(request, share))
                )
            response = await respond(answer, call.answer_share)
            if call.left_out:
                response.headers[LEFT_OUT] = ",".join(map(str, sorted(call.left_out)))
            return response
        except BaseException as error:
            if call is not None:
                call.answer_share.give_back()
            if not isinstance(error, Exception):
                raise
            tells_more = caller is not None and caller.may(Scope.READ)
            return answer_to(error, f"{route.method} {route.path}", tells_more=tells_more)

    serve.__name__ = route.name
    serve.__doc__ = route.handler.__doc__
    return serve


async def respond(answer: Any, share: Share) -> Response:
    """The answer as JSON; a long one keeps its memory share until it is sent."""
    if isinstance(answer, Response):
        share.give_back()
        return answer
    is_new = isinstance(answer, Created)
    body = _encode(answer.value if is_new else answer)
    share.shrink(len(body))
    if len(body) <= SMALL_BODY_BYTES:
        return Response(body, 201 if is_new else 200, media_type="application/json")
    await share.wait(len(body))
    return LongResponse(body, share)


class LongResponse(Response):
    """An answer that is sent in parts, as fast as the client reads."""

    media_type = "application/json"

    def __init__(self, body: bytes, share: Share) -> None:
        super().__init__(body)
        self._share = share

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As ASGI has it."""
        del scope, receive
        with self._share:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            whole = memoryview(self.body)
            for start in range(0, len(whole), _PART_BYTES):
                part = whole[start : start + _PART_BYTES]
                more = start + _PART_BYTES < len(whole)
                await send({"type": "http.response.body", "body": bytes(part), "more_body": more})


def _reader(server: Server, route: Route) -> Reader | None:
    if route.takes is None:
        return None
    if route.reads_query:
        return _query_reader(route.takes)
    settings = server.settings
    max_bytes = settings.max_batch_bytes if route.batch else settings.max_body_bytes
    return _body_reader(route.takes, max_bytes, route.check_item)


def _body_reader(kind: Any, max_bytes: int, check_item: CheckItem | None) -> Reader:
    decode = decoder(kind, check_item)

    async def read(request: Request, share: Share) -> Any:
        body = await read_json(request, max_bytes, share)
        try:
            return await decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise bad_json(error) from None

    return read


def _query_reader(kind: Any) -> Reader:
    lists = {field.encode_name for field in msgspec.structs.fields(kind) if _takes_several(field.type)}

    async def read(request: Request, _: Share) -> Any:
        given: dict[str, Any] = {}
        for name, value in request.query_params.multi_items():
            if name in lists:
                given.setdefault(name, []).append(value)
            elif name in given:
                raise Denied(problems.INVALID.problem(f"query parameter {name!r:.80} is given twice"))
            else:
                given[name] = value
        return msgspec.convert(given, kind, strict=False)

    return read


def _takes_several(kind: Any) -> bool:
    return isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.ListType)
