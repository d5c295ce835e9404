"""A route: an address, the rule for its callers, what it takes and gives. There is no other way to make one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.api.bodies import BodyShare, bad_json, read_json
from holdfast.api.failures import answer_to, problem_response
from holdfast.api.gateway import Gateway
from holdfast.api.guard import Caller, Denied, Rule, Scope
from holdfast.observe.tracing import note_request
from holdfast.wire import problems

Method = Literal["GET", "POST", "PUT", "DELETE"]
Handler = Callable[..., Awaitable[Any]]
Reader = Callable[[Request, BodyShare], Awaitable[Any]]

_encode = msgspec.json.Encoder().encode


class Call:
    """One request, let in by the guard."""

    __slots__ = ("caller", "gateway", "request", "rule", "store")

    def __init__(self, gateway: Gateway, request: Request, caller: Caller, rule: Rule) -> None:
        self.gateway = gateway
        self.store = gateway.store
        self.request = request
        self.caller = caller
        self.rule = rule

    def path(self, name: str) -> str:
        """A part of the address."""
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


class OneOf(msgspec.Struct, frozen=True):
    """Either of two shapes: the other one, if it has the field that only that one has."""

    usual: Any
    other: Any
    field: str


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


def endpoint(gateway: Gateway, route: Route) -> Callable[[Request], Awaitable[Response]]:
    """The route as the framework calls it: check, read, do, answer; nothing leaves it but an answer."""
    read = _reader(gateway, route)

    async def serve(request: Request) -> Response:
        note_request(request.headers.get("traceparent"), request.path_params.get("task_id"))
        caller: Caller | None = None
        try:
            if gateway.leaving and not route.rule.public:
                return problem_response(problems.SHUTTING_DOWN.problem())
            caller = await gateway.guard.check(request, route.rule)
            call = Call(gateway, request, caller, route.rule)
            # What was sent is in memory until it is answered.
            with gateway.body_room.share() as share:
                answer = await (
                    route.handler(call) if read is None else route.handler(call, await read(request, share))
                )
        except Exception as error:  # noqa: BLE001  (every error becomes an answer)
            tells_more = caller is not None and caller.may(Scope.READ)
            return answer_to(error, f"{route.method} {route.path}", tells_more=tells_more)
        return respond(answer)

    serve.__name__ = route.name
    serve.__doc__ = route.handler.__doc__
    return serve


def respond(answer: Any) -> Response:
    """The answer as JSON."""
    if isinstance(answer, Response):
        return answer
    if isinstance(answer, Created):
        return Response(_encode(answer.value), 201, media_type="application/json")
    return Response(_encode(answer), 200, media_type="application/json")


def _reader(gateway: Gateway, route: Route) -> Reader | None:
    if route.takes is None:
        return None
    if route.reads_query:
        return _query_reader(route.takes)
    settings = gateway.settings
    return _body_reader(route.takes, settings.max_batch_bytes if route.batch else settings.max_body_bytes)


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    if not isinstance(kind, OneOf):
        return msgspec.json.Decoder(kind).decode
    usual, other = msgspec.json.Decoder(kind.usual), msgspec.json.Decoder(kind.other)
    fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
    return lambda body: (other if kind.field in fields.decode(body) else usual).decode(body)


def _body_reader(kind: Any, max_bytes: int) -> Reader:
    decode = _decoder(kind)

    async def read(request: Request, share: BodyShare) -> Any:
        body = await read_json(request, max_bytes, share)
        try:
            return decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise bad_json(error) from None

    return read


def _query_reader(kind: Any) -> Reader:
    lists = {field.encode_name for field in msgspec.structs.fields(kind) if _takes_several(field.type)}

    async def read(request: Request, _: BodyShare) -> Any:
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
