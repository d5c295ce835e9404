"""The OpenAPI document says what the routes do, and its examples are true."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from starlette.routing import Route as ServedRoute

from holdfast.server.app import ROUTES, make_app
from holdfast.server.openapi import openapi
from holdfast.server.openapi_examples import EXAMPLES
from holdfast.server.routing import OneOf, Route
from holdfast.server.server import Server
from holdfast.stores.open import open_store
from tests.server.setting import Client, OpenDoor

DOCUMENT = openapi(ROUTES)
_BY_HAND = [route for route in ROUTES if route.tag not in {"store", "events", "metrics", "document"}]


def _name(route: Route) -> str:
    return route.name


def test_the_document_has_every_address_that_the_app_serves() -> None:
    api = make_app(Server(open_store("sqlite://"), OpenDoor()))
    served = {
        (method, route.path)
        for route in api.routes
        if isinstance(route, ServedRoute)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert len(served) == len(api.routes)
    described = {(method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item}
    assert described == served == {(route.method, route.path) for route in ROUTES}


def test_no_two_routes_have_one_name_or_one_address() -> None:
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)


def test_every_route_is_described() -> None:
    for item in DOCUMENT["paths"].values():
        for operation in item.values():
            assert operation["summary"], operation["operationId"]
            assert operation["responses"]["default"]


def test_an_address_that_names_something_says_that_it_may_not_be_there() -> None:
    for path, item in DOCUMENT["paths"].items():
        for operation in item.values():
            expected = any(part in path for part in ("{task_id}", "{name}", "{worker_id}"))
            assert ("404" in operation["responses"]) == (expected or operation["tags"] == ["store"]), path


def test_every_reference_leads_somewhere() -> None:
    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*map(references, value.values()))
        return set().union(*map(references, value)) if isinstance(value, list) else set()

    found = references(DOCUMENT)
    assert found
    assert {reference.rpartition("/")[2] for reference in found} <= set(DOCUMENT["components"]["schemas"])


def test_public_routes_are_few() -> None:
    assert {route.path for route in ROUTES if route.rule.public} == {"/healthz", "/readyz", "/openapi.json"}


def test_the_server_gives_the_document(client: Client) -> None:
    assert client.get("/openapi.json") == json.loads(msgspec.json.encode(DOCUMENT))


@pytest.mark.parametrize("route", _BY_HAND, ids=_name)
def test_a_route_that_is_called_by_hand_has_an_example(route: Route) -> None:
    example = EXAMPLES[route.name]
    takes_body = route.takes is not None and not route.reads_query
    assert (example.request is not None) == takes_body
    operation = DOCUMENT["paths"][route.path][route.method.lower()]
    assert operation["responses"]["200"]["content"]["application/json"]["example"] == example.answer
    if takes_body:
        assert operation["requestBody"]["content"]["application/json"]["example"] == example.request


@pytest.mark.parametrize("route", _BY_HAND, ids=_name)
def test_an_example_fits_its_route(route: Route) -> None:
    example = EXAMPLES[route.name]
    if example.request is not None:
        takes = route.takes.usual if isinstance(route.takes, OneOf) else route.takes
        msgspec.json.decode(json.dumps(example.request), type=takes)
    gives = route.gives.usual if isinstance(route.gives, OneOf) else route.gives
    value = msgspec.json.decode(json.dumps(example.answer), type=gives)
    assert json.loads(msgspec.json.encode(value)) == example.answer


def test_there_is_no_example_without_a_route() -> None:
    assert set(EXAMPLES) <= {route.name for route in ROUTES}


def test_the_examples_work_as_a_conversation(client: Client) -> None:
    """Each request of the document is understood by the server; ids in them are of tasks that are not there."""
    for route in _BY_HAND:
        body = EXAMPLES[route.name].request
        path = route.path.format(queue="images", task_id="0" * 32, name="nightly", worker_id="node-1")
        answer = client.send(route.method, path, {**body, "wait": 0} if route.name == "reserve" else body)
        assert answer.status in {200, 201, 404}, (route.name, answer)
