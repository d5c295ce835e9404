"""What browsers can be made to send, and what they are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.server.edge import SECURITY_HEADERS, is_loopback, objection, secured
from holdfast.server.server import ServerSettings
from tests.server.security.gate import Gate, open_gate
from tests.server.setting import Client

BODY = {"type": "add"}
ENQUEUE = "/v1/queues/q/tasks"


@pytest.fixture
def admin(gate: Gate) -> Client:
    return gate.client("admin")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1.evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "Cross-Site"},
        {"Sec-Fetch-Site": "something-new"},
    ],
    ids=str,
)
def test_a_page_of_another_site_changes_nothing(headers: dict[str, str], gate: Gate, admin: Client) -> None:
    for method, path, body in (
        ("POST", ENQUEUE, BODY),
        ("PUT", "/v1/schedules/s", {"type": "add", "every": "1h"}),
        ("DELETE", "/v1/schedules/s", None),
        ("OPTIONS", ENQUEUE, None),
        ("PATCH", ENQUEUE, None),
        ("PROPFIND", ENQUEUE, None),
    ):
        answer = admin.send(method, path, body, headers)
        assert (method, answer.status) == (method, 403)
        assert answer.json["type"].endswith("foreign-origin")
    assert gate.run(lambda store: store.counts()) == []


def test_our_own_pages_and_programs_may(gate: Gate, admin: Client) -> None:
    here = f"127.0.0.1:{gate.port}"
    for headers in ({}, {"Origin": f"http://{here}"}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
        assert admin.send("POST", ENQUEUE, BODY, headers).status == 201
    assert admin.send("GET", "/v1/queues", headers={"Origin": "https://evil.example"}).status == 200


def test_there_is_no_cors(admin: Client) -> None:
    asks = {"Origin": "https://evil.example", "Access-Control-Request-Method": "GET"}
    for method in ("GET", "OPTIONS"):
        answer = admin.send(method, "/v1/queues", headers=asks)
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil", "0"])
def test_on_loopback_no_other_name_is_answered(host: str, admin: Client) -> None:
    """A name that its owner makes point to 127.0.0.1 would make his page one of our site."""
    for path in ("/healthz", "/v1/queues", "/nothing"):
        answer = admin.send("GET", path, headers={"Host": host})
        assert answer.status == 421
        assert host not in answer.body.decode()


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.1.2.3:80", "[::1]", "[::1]:8080"])
def test_names_of_this_machine_are_answered(host: str, admin: Client) -> None:
    assert admin.send("GET", "/healthz", headers={"Host": host}).status == 200


def test_names_that_are_allowed_are_answered(tmp_path: Path) -> None:
    with open_gate(tmp_path, ServerSettings(maintenance=False, names=("Tasks.example",))) as gate:
        client = gate.client("admin")
        for host, status in (("tasks.example", 200), ("TASKS.example:443", 200), ("localhost", 200), ("evil", 421)):
            assert client.send("GET", "/healthz", headers={"Host": host}).status == status
        origin = {"Host": "tasks.example", "Origin": "https://tasks.example"}
        assert client.send("POST", ENQUEUE, BODY, origin).status == 201


def _scope(host: str | None, server: tuple[str, int | None] | None, *more: tuple[bytes, bytes]) -> dict[str, Any]:
    headers = [] if host is None else [(b"host", host.encode())]
    return {"method": "POST", "headers": [*headers, *more], "server": server}


def test_who_listens_to_others_goes_by_any_name_unless_told_otherwise() -> None:
    assert objection(_scope("tasks.example", ("10.0.0.5", 8080)), ()) is None
    assert objection(_scope("tasks.example", ("127.0.0.1", 8080)), ()) is not None
    assert objection(_scope("tasks.example", ("/run/holdfast.sock", None)), ()) is None
    assert objection(_scope("tasks.example", ("10.0.0.5", 8080)), {"other.example"}) is not None
    assert objection(_scope(None, ("127.0.0.1", 8080)), ()) is None
    twice = _scope("localhost", ("127.0.0.1", 8080), (b"host", b"evil"))
    assert objection(twice, ()) is not None


def test_an_origin_needs_a_host_to_be_compared_with() -> None:
    assert objection(_scope(None, ("10.0.0.5", 80), (b"origin", b"http://a")), ()) is not None


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("localhost.", True),
        ("0.0.0.0", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/v1/queues", 200),
        ("GET", "/nothing", 404),
        ("PUT", "/v1/queues", 405),
        ("POST", "/v1/reserve", 415),
        ("GET", "/v1/tasks?limit=0", 422),
    ],
)
def test_every_answer_has_our_headers(method: str, path: str, status: int, gate: Gate, admin: Client) -> None:
    for client, expected in ((admin, status), (gate.with_token(None), None)):
        answer = client.send(method, path)
        assert expected in (None, answer.status)
        for name, value in SECURITY_HEADERS:
            assert answer.headers[name.decode()] == value.decode()
        assert "server" not in answer.headers
        assert "strict-transport-security" not in answer.headers


def test_a_page_may_have_a_policy_of_its_own() -> None:
    headers = dict(secured([(b"Content-Security-Policy", b"default-src 'self'"), (b"Server", b"x")], tls=True))
    assert headers[b"Content-Security-Policy"] == b"default-src 'self'"
    assert b"content-security-policy" not in headers
    assert b"Server" not in headers
    assert headers[b"strict-transport-security"].startswith(b"max-age=")
