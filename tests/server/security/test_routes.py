"""Every route, and who may call it: this table, and not the rules in the code, is what was decided."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.security.scopes import Scope
from holdfast.server.app import ROUTES
from holdfast.server.auth import Rule
from tests.server.security.gate import Gate, open_gate
from tests.server.setting import Client

OWN, FOREIGN = "own", "foreign"
TASK_ID = "0" * 32
#: The tokens that there are, by the letters of the table: each has one scope, for queues that of the queue `own`.
TOKENS = {"e": f"enqueue:{OWN}", "w": f"work:{OWN}", "r": "read", "m": "manage", "a": "admin"}
ANYBODY = "*"

#: Who may call what: letters of tokens, or `*` for anybody without one.
TABLE = {
    "GET /healthz": ANYBODY,
    "GET /readyz": ANYBODY,
    "GET /openapi.json": ANYBODY,
    "GET /metrics": "rma",
    "GET /v1/whoami": "ewrma",
    # tasks
    "POST /v1/queues/{queue}/tasks": "ea",
    "POST /v1/tasks": "ea",
    "GET /v1/tasks": "rma",
    "GET /v1/tasks/{task_id}": "ewrma",
    "GET /v1/tasks/{task_id}/why": "ewrma",
    "GET /v1/tasks/{task_id}/history": "ewrma",
    "POST /v1/tasks/{task_id}/cancel": "ema",
    "POST /v1/tasks/{task_id}/prioritize": "ma",
    # claims
    "POST /v1/reserve": "wa",
    "POST /v1/settle": "ewma",
    "POST /v1/extend": "wa",
    "POST /v1/tasks/{task_id}/ack": "wa",
    "POST /v1/tasks/{task_id}/fail": "wa",
    "POST /v1/tasks/{task_id}/snooze": "wa",
    "POST /v1/tasks/{task_id}/release": "wa",
    "POST /v1/tasks/{task_id}/extend": "wa",
    # dead letters
    "GET /v1/dead-letters": "rma",
    "GET /v1/dead-letters/by-error": "rma",
    "POST /v1/dead-letters/replay": "ma",
    "POST /v1/dead-letters/discard": "ma",
    # schedules
    "GET /v1/schedules": "rma",
    "GET /v1/schedules/{name}": "rma",
    "GET /v1/schedules/{name}/next": "rma",
    "PUT /v1/schedules/{name}": "ma",
    "DELETE /v1/schedules/{name}": "ma",
    "POST /v1/schedules/{name}/pause": "ma",
    "POST /v1/schedules/{name}/resume": "ma",
    "POST /v1/schedules/{name}/run": "ma",
    # queues, workers, partitions
    "GET /v1/queues": "rma",
    "GET /v1/queues/{queue}": "ewrma",
    "GET /v1/queues/{queue}/scale": "ewrma",
    "POST /v1/queues/{queue}/pause": "ma",
    "POST /v1/queues/{queue}/resume": "ma",
    "POST /v1/queues/{queue}/order": "ma",
    "GET /v1/workers": "rma",
    "GET /v1/workers/{worker_id}": "rma",
    "POST /v1/workers/{worker_id}/concurrency": "ma",
    "POST /v1/workers/{worker_id}/announce": "wa",
    "GET /v1/partitions": "rma",
    "GET /v1/events": "rma",
    # the contract
    "POST /v1/store/enqueue": "ea",
    "POST /v1/store/reserve": "wa",
    "POST /v1/store/extend": "wa",
    "POST /v1/store/apply": "ewma",
    "POST /v1/store/wait": "wa",
    "POST /v1/store/get": "ewrma",
    "POST /v1/store/find": "ewrma",
    "POST /v1/store/counts": "ewrma",
    "POST /v1/store/workers": "ewrma",
    "POST /v1/store/probe": "a",
    "POST /v1/store/announce": "wa",
    "POST /v1/store/partitions": "a",
    "POST /v1/store/promote": "a",
    "POST /v1/store/expired": "a",
    "POST /v1/store/lead": "a",
    "POST /v1/store/prune": "a",
    "POST /v1/store/migrate": "a",
    # each kind of document has rules of its own: test_documents.py
    "POST /v1/store/documents": "ewrma",
    "POST /v1/store/put": "ewrma",
}


class Clients:
    """One client for each token of the table."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.by_letter = {letter: gate.client(scope) for letter, scope in TOKENS.items()}
        self.nobody = gate.with_token(None)
        self.stranger = gate.with_token("not-a-token")


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    with open_gate(tmp_path_factory.mktemp("gate")) as gate:
        yield Clients(gate)


def _filled(path: str, queue: str = OWN) -> str:
    return path.format(queue=queue, task_id=TASK_ID, name="nightly", worker_id="worker-1")


def _status(client: Client, name: str, queue: str = OWN) -> int:
    """What an empty request is answered with: who may call the route is decided before it is read."""
    method, _, path = name.partition(" ")
    if path == "/v1/events" and client is not None:
        return _stream_status(client, path)
    body: Any = {} if method in ("POST", "PUT") else None
    return client.send(method, _filled(path, queue), body).status


def _stream_status(client: Client, path: str) -> int:
    """Of an answer that does not end."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
    try:
        headers = {} if client._token is None else {"Authorization": f"Bearer {client._token}"}
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def _names() -> list[str]:
    return [f"{route.method} {route.path}" for route in ROUTES]


def test_every_route_is_in_the_table_and_there_is_no_other() -> None:
    served = set(_names())
    assert served - TABLE.keys() == set(), "decide who may call them, and add them to the table"
    assert TABLE.keys() - served - {"GET /metrics"} == set()


def test_no_route_is_without_a_rule() -> None:
    assert all(isinstance(route.rule, Rule) for route in ROUTES)
    public = {name for name, route in zip(_names(), ROUTES, strict=True) if route.rule.public}
    assert public == {name for name, letters in TABLE.items() if letters == ANYBODY}


def test_the_app_serves_nothing_else(clients: Clients) -> None:
    """What the framework brings along, such as pages of documentation, is not there."""
    from starlette.routing import Route

    app = clients.gate.server.server.config.app
    paths = {route.path for route in app.routes if isinstance(route, Route)}  # type: ignore[union-attr]
    assert paths == {route.path for route in ROUTES}
    admin = clients.by_letter["a"]
    assert admin.send("GET", "/docs").status == 404
    assert admin.send("GET", "/").status == 404


@pytest.mark.parametrize("name", _names())
def test_route_is_for_those_of_the_table(name: str, clients: Clients) -> None:
    letters = TABLE[name]
    if letters == ANYBODY:
        assert _status(clients.nobody, name) == 200
        return
    assert _status(clients.nobody, name) == 401
    assert _status(clients.stranger, name) == 401
    statuses = {letter: _status(client, name) for letter, client in clients.by_letter.items()}
    refused = {letter for letter, status in statuses.items() if status in (401, 403)}
    assert refused == set(TOKENS) - set(letters), statuses
    assert {statuses[letter] for letter in refused} <= {403}
    assert all(status < 500 for status in statuses.values()), statuses


@pytest.mark.parametrize("name", [name for name in _names() if "{queue}" in name])
def test_route_of_a_foreign_queue_is_refused(name: str, clients: Clients) -> None:
    for letter in "ew":
        if letter in TABLE[name]:
            assert _status(clients.by_letter[letter], name, FOREIGN) == 403
    assert _status(clients.by_letter["a"], name, FOREIGN) not in (401, 403)


def test_scopes_of_rules_are_those_that_there_are() -> None:
    assert {scope for route in ROUTES for scope in route.rule.scopes} <= set(Scope)


def test_a_wrong_method_is_refused_before_anything_else(clients: Clients, tmp_path: Path) -> None:
    for client in (clients.nobody, clients.by_letter["r"]):
        assert client.send("DELETE", "/v1/tasks").status in (401, 405)
