"""The OpenAPI document, made from the table of routes: what is not in one is not in the other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from inspect import cleandoc
from typing import Any, Final

import msgspec

from holdfast.api.bounds import bounded
from holdfast.api.examples import EXAMPLES
from holdfast.api.routing import OneOf, Route
from holdfast.version import __version__
from holdfast.wire import patterns, problems, shapes
from holdfast.wire.problems import Kind, Problem

_REF: Final = "#/components/schemas/{name}"
_IN_PATH: Final = re.compile(r"{(\w+)}")
#: What the parts of an address are; a name that is not here is any text.
_PARTS: Final = {"task_id": shapes.TaskId, "queue": shapes.Queue, "name": shapes.TypeName, "worker_id": shapes.Id}
_ABOUT: Final = (
    "Records, runs and settles tasks over HTTP. Times are milliseconds since 1970 in UTC, durations are seconds or "
    'text such as "10m". Every refusal is a problem (RFC 9457). Every request may be sent again after a lost reply: '
    "with the ids that the client has made, or with the same Idempotency-Key."
)
_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Makes a repeat of the request known as one, where the client gives no id of its own.",
    "schema": {"type": "string", "pattern": patterns.VISIBLE},
}
#: Routes that make something and so heed the key.
_KEYED: Final = frozenset({"enqueue", "enqueue_many", "reserve", "run_schedule"})

#: Refusals that have to do with a part of the address.
_OF_PART: Final[dict[str, list[Kind]]] = {
    "task_id": [problems.UNKNOWN_TASK],
    "name": [problems.UNKNOWN_SCHEDULE, problems.REFUSED],
    "worker_id": [problems.UNKNOWN_WORKER],
    "queue": [],
}
_OF_ROUTE: Final = {
    "enqueue": [problems.REQUEST_CONFLICT, problems.STORE_FULL],
    "enqueue_many": [problems.STORE_FULL],
    "run_schedule": [problems.STORE_FULL],
    "store_enqueue": [problems.STORE_FULL],
}


def openapi(routes: Sequence[Route]) -> dict[str, Any]:
    """The document."""
    schemas = _Schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__, "description": _ABOUT},
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in routes)],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """The schemas of all that routes take and give."""

    def __init__(self, routes: Sequence[Route]) -> None:
        kinds = [kind for route in routes for whole in (route.takes, route.gives) for kind in _kinds(whole)]
        kinds += [Problem, *_PARTS.values()]
        made, components = msgspec.json.schema_components(kinds, ref_template=_REF)
        self.components = bounded(components)
        self._made = list(zip(kinds, made, strict=True))

    def of(self, whole: Any) -> dict[str, Any]:
        """The schema of what a route takes or gives."""
        found = [next(schema for kind, schema in self._made if kind is wanted) for wanted in _kinds(whole)]
        return found[0] if len(found) == 1 else {"oneOf": found}


def _kinds(whole: Any) -> list[Any]:
    if whole is None:
        return []
    return [whole.usual, whole.other] if isinstance(whole, OneOf) else [whole]


def _operation(route: Route, schemas: _Schemas) -> dict[str, Any]:
    text = cleandoc(route.handler.__doc__ or "")
    operation: dict[str, Any] = {
        "operationId": route.name,
        "tags": [route.tag],
        "summary": text.partition("\n")[0],
        "parameters": _parameters(route, schemas),
        "responses": _responses(route, schemas),
    }
    if not route.rule.public:
        operation["security"] = [{"token": []}]
        operation["x-holdfast-scopes"] = [str(scope) for scope in route.rule.scopes]
    if route.takes is not None and not route.reads_query:
        content: dict[str, Any] = {"schema": schemas.of(route.takes)}
        if route.name in EXAMPLES:
            content["example"] = EXAMPLES[route.name].request
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    return operation


def _parameters(route: Route, schemas: _Schemas) -> list[dict[str, Any]]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": schemas.of(_PARTS[name])}
        for name in _IN_PATH.findall(route.path)
    ]
    if route.reads_query:
        (schema,) = (schemas.components[ref.rpartition("/")[2]] for ref in [schemas.of(route.takes)["$ref"]])
        parameters += [
            {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": of}
            for name, of in schema["properties"].items()
        ]
    if route.name in _KEYED:
        parameters.append(_KEY)
    return parameters


def _responses(route: Route, schemas: _Schemas) -> dict[str, Any]:
    media_type = "text/plain" if route.path == "/metrics" else "text/event-stream"
    content: dict[str, Any] = {media_type: {"schema": {"type": "string"}}}
    if route.gives is not None:
        content = {"application/json": {"schema": schemas.of(route.gives)}}
        if route.name in EXAMPLES:
            content["application/json"]["example"] = EXAMPLES[route.name].answer
    responses: dict[str, Any] = {"200": {"description": "Done", "content": content}}
    if route.creates:
        responses["201"] = {"description": "Made", "content": content}
    refusals: dict[str, list[Kind]] = {}
    for kind in _refusals(route):
        refusals.setdefault(str(kind.status), []).append(kind)
    of_problem = {problems.MEDIA_TYPE: {"schema": schemas.of(Problem)}}
    for status, kinds in sorted(refusals.items()):
        titles = "; ".join(dict.fromkeys(kind.title for kind in kinds))
        responses[status] = {"description": titles, "content": of_problem}
    responses["default"] = {"description": "Any other refusal", "content": of_problem}
    return responses


def _refusals(route: Route) -> list[Kind]:
    """The problems that are to be expected."""
    kinds = [problems.STORE_UNAVAILABLE]
    if not route.rule.public:
        kinds += [problems.UNAUTHORIZED, problems.FORBIDDEN, problems.TOO_MANY_REQUESTS, problems.STALE_MAP]
    if route.takes is not None or "{" in route.path:
        kinds.append(problems.INVALID)
    if route.takes is not None and not route.reads_query:
        kinds += [problems.BAD_JSON, problems.BODY_TOO_LARGE, problems.MEDIA_TYPE_NOT_SUPPORTED]
    if route.reads_query:
        kinds += [problems.HEAD_TOO_LARGE, problems.NO_HTTP]  # of an address without end
    for part in _IN_PATH.findall(route.path):
        kinds += _OF_PART[part]
    if "{task_id}" in route.path and route.method == "POST":
        kinds += [problems.STALE_CLAIM, problems.REFUSED]
    if route.tag == "store":
        kinds += [problems.NOT_FOUND, problems.STALE_EPOCH]
    return kinds + _OF_ROUTE.get(route.name, [])
