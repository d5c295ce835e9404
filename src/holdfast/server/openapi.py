"""The OpenAPI document, generated from the table of routes.

The types of the store's records are those of our own code and have no bounds; the bounds that `checks.py` enforces on
them are declared here, as are fields that exclude each other. Where a route answers any value, such as the id of no
task, or where the same record is part of an answer, there is no bound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import cleandoc
from typing import Any, Final

import msgspec

from holdfast.core.durations import LONGEST_MS
from holdfast.core.priority import HIGHEST, LOWEST
from holdfast.core.retry import MAX_ATTEMPTS
from holdfast.core.task import MAX_HEADERS
from holdfast.server.checks import LAST_MS
from holdfast.server.openapi_examples import EXAMPLES
from holdfast.server.requests import ID, NAME, TASK_ID, VISIBLE, Id, Queue, TaskId, TypeName
from holdfast.server.routing import OneOf, Route
from holdfast.stores.contract import MAX_BATCH
from holdfast.stores.remote import problems
from holdfast.stores.remote.limits import (
    LARGEST_COUNT,
    LARGEST_EXACT,
    LARGEST_MEMORY_BYTES,
    LONGEST_CURSOR,
    LONGEST_LEASE_MS,
    LONGEST_TTL_MS,
    MAX_ERROR_TYPES,
    MAX_QUEUES,
    MAX_SCHEDULES,
    MAX_TYPES,
)
from holdfast.stores.remote.problems import Kind, Problem
from holdfast.version import __version__

_BASE64: Final = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_NAME: Final = {"pattern": NAME}
_VISIBLE: Final = {"pattern": VISIBLE}
_TASK_ID: Final = {"pattern": TASK_ID}
_ID: Final = {"pattern": ID}
_PRIORITY: Final = {"minimum": LOWEST, "maximum": HIGHEST}
_MS: Final = {"minimum": 0, "maximum": LONGEST_MS}
_BATCH: Final = {"minimum": 0, "maximum": MAX_BATCH}
_SMALL: Final = {"minimum": 0, "maximum": LARGEST_COUNT}
_SEVERAL: Final = {"maxItems": MAX_BATCH}

#: By the names of structs and their fields.
FIELDS: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "NewTask": {
        "task_id": _TASK_ID,
        "type": _NAME,
        "queue": _NAME,
        "request_id": _VISIBLE,
        "priority": _PRIORITY,
        "headers": {"maxProperties": 2 * MAX_HEADERS},
        "delay_ms": _MS,
        "run_at_ms": {"minimum": 0, "maximum": LAST_MS},
    },
    "RunPolicy": {
        "max_attempts": {"minimum": 1, "maximum": MAX_ATTEMPTS},
        "base_ms": _MS,
        "cap_ms": _MS,
        "jitter": {"minimum": 0, "maximum": 1},
        "give_up_on": {"maxItems": MAX_ERROR_TYPES},
        "retry_on": {"maxItems": MAX_ERROR_TYPES},
        "timeout_ms": _MS,
        "expires_ms": _MS,
        "result_ttl_ms": _MS,
        "dead_letter_ttl_ms": _MS,
    },
    "Change": {"epoch": {"minimum": -1, "maximum": LARGEST_EXACT}, "delay_ms": _MS, "priority": _PRIORITY},
    "holdfast.stores.contract.Reserve": {
        "claim_id": _ID,
        "worker_id": _ID,
        "shares": {"maxItems": MAX_QUEUES},
        "max_tasks": _BATCH,
        "lease_ms": {"minimum": 0, "maximum": LONGEST_LEASE_MS},
    },
    "Enqueue": {"tasks": _SEVERAL},
    "Apply": {"changes": _SEVERAL},
    "Extend": {"holds": _SEVERAL, "lease_ms": {"minimum": 0, "maximum": LONGEST_LEASE_MS}},
    "TaskIds": {"task_ids": {**_SEVERAL, "uniqueItems": True}},
    "Epoch": {"limit": _BATCH},
    "Limit": {"limit": _BATCH},
    "Prune": {"limit": _BATCH},
    "Query": {"limit": {"minimum": 1, "maximum": MAX_BATCH}},
    "Wait": {"wakeups": {"maxItems": MAX_QUEUES, "items": {"type": "string", **_NAME}}, "timeout_ms": _MS},
    "Announce": {"ttl_ms": {"minimum": 0, "maximum": LONGEST_TTL_MS}},
    "WorkerRecord": {
        "worker_id": _ID,
        "host": _ID,
        "version": _ID,
        "queues": {"minItems": 1, "maxItems": MAX_BATCH},
        "types": {"maxItems": MAX_TYPES},
        "pid": _SMALL,
        "processes": _SMALL,
        "concurrency": _SMALL,
        "running": _SMALL,
        "ended_last_minute": _SMALL,
        "memory_bytes": {"minimum": 0, "maximum": LARGEST_MEMORY_BYTES},
    },
    "WorkerOrders": {"concurrency": _BATCH},
    "Lead": {"name": _ID, "ttl_ms": _MS},
    "Documents": {
        "kind": _NAME,
        "names": _SEVERAL,
        "due_within_ms": _MS,
        "cursor": {"maxLength": LONGEST_CURSOR},
        "limit": {"minimum": 0, "maximum": MAX_SCHEDULES},
    },
    "Put": {"kind": _NAME, "ttl_ms": _MS, "tasks": _SEVERAL},
    "DiscardManyBody": {"reason": {"pattern": r"\S"}},
}

_EITHER: Final = {"oneOf": [{"required": ["task_ids"]}, {"required": ["filter"]}]}
#: What is said of structs as a whole.
WHOLE: Final[Mapping[str, Mapping[str, Any]]] = {
    "TaskBody": {"not": {"required": ["delay", "run_at"]}},
    "ReplayBody": _EITHER,
    "DiscardManyBody": _EITHER,
}
_REF: Final = "#/components/schemas/{name}"
_IN_PATH: Final = re.compile(r"{(\w+)}")
#: What the parts of an address are; a name that is not here is any text.
_PARTS: Final = {"task_id": TaskId, "queue": Queue, "name": TypeName, "worker_id": Id}
_ABOUT: Final = (
    "Enqueue, claim and settle tasks over HTTP. Times are milliseconds since 1970 in UTC, durations are seconds or "
    'text such as "10m". Every error is a problem (RFC 9457). Every request may be sent again after a lost reply: '
    "with the ids that the client has made, or with the same Idempotency-Key."
)
_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Identifies repeats of the request, where the client sends no id of its own.",
    "schema": {"type": "string", "pattern": VISIBLE},
}
#: Routes that create something and honour the key.
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


# -- bounds --------------------------------------------------------------------------------------------------------


def bounded(components: Mapping[str, Any]) -> dict[str, Any]:
    """The schemas of structs with all that is said of them here."""
    return {name: _bounded(name, _texts(schema)) for name, schema in components.items()}


def _bounded(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    for field, bound in FIELDS.get(name, {}).items():
        properties = {**properties, field: {**properties[field], **bound}}
    return {**schema, **({"properties": properties} if properties else {}), **WHOLE.get(name, {})}


def _texts(schema: Any) -> Any:
    """The same with a pattern wherever text is base64, and without the demand that sets are sent as sets."""
    if isinstance(schema, list):
        return [_texts(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    own = {"pattern": _BASE64} if schema.get("contentEncoding") == "base64" else {}
    # Twice the same is once.
    return {name: _texts(value) for name, value in schema.items() if name != "uniqueItems"} | own


# -- the document --------------------------------------------------------------------------------------------------


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
    responses["default"] = {"description": "Any other error", "content": of_problem}
    return responses


def _refusals(route: Route) -> list[Kind]:
    """The problems that are to be expected."""
    kinds = [problems.STORE_UNAVAILABLE]
    if not route.rule.public:
        kinds += [problems.UNAUTHORIZED, problems.FORBIDDEN, problems.TOO_MANY_REQUESTS, problems.STALE_MAP]
        kinds.append(problems.BUSY)
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
