"""Every refusal is one shape, whatever was wrong and wherever it was noticed."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast import errors
from holdfast.core.task import Task
from holdfast.errors import HoldfastError
from holdfast.server import edge
from holdfast.server.server import ServerSettings
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from holdfast.stores.remote import problems
from tests.server.setting import Client, RunningServer, running_server, sqlite_server

_HEAD = b"POST /v1/reserve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def _classes(base: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    """The public classes; a store has others of its own, which are there if another test has loaded it."""
    yield base
    for each in base.__subclasses__():
        if each.__module__ == errors.__name__:
            yield from _classes(each)


#: Raised by clients and inside of tasks, not by what a server does.
_NEVER_SENT = {
    errors.HoldfastError,
    errors.TaskFailed,
    errors.TaskCancelled,
    errors.ResultTimeout,
    errors.BadApp,
    errors.UnknownKey,
}


@pytest.mark.parametrize("error", sorted(set(_classes(HoldfastError)) - _NEVER_SENT, key=str))
def test_an_error_comes_out_as_it_went_in(error: type[HoldfastError]) -> None:
    problem = problems.problem_of(error("in one line"))
    back = problems.error_of(problem.status, problems.write_problem(problem))
    assert type(back) is error
    assert str(back) == "in one line"
    assert (problem.retry_after is not None) == error.retryable


def test_every_kind_has_a_name_of_its_own() -> None:
    names = [kind.name for kind in problems.KINDS]
    assert len(names) == len(set(names))


def test_an_answer_of_something_in_between_is_an_absent_store() -> None:
    assert isinstance(problems.error_of(502, b"<html>Bad gateway</html>"), errors.StoreUnavailable)
    assert isinstance(problems.error_of(404, b"not here"), errors.StoreError)


def test_addresses_and_methods_that_are_not_there(client: Client) -> None:
    assert client.get("/nothing", 404)["type"].endswith("not-found")
    assert client.get("/v1/tasks/", 404)["type"].endswith("not-found")
    answer = client.send("DELETE", "/v1/reserve")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("body", "status", "name"),
    [
        (b"", 400, "bad-json"),
        (b"  ", 400, "bad-json"),
        (b"{", 400, "bad-json"),
        (b'{"worker_id": "\xff"}', 400, "bad-json"),
        (b'{"worker_id": "\\ud800"}', 400, "bad-json"),
        (b'{"worker_id": NaN}', 400, "bad-json"),
        (b"[]", 422, "invalid"),
        (b"null", 422, "invalid"),
        (b'{"worker_id": 1}', 422, "invalid"),
    ],
)
def test_a_body_that_is_not_what_it_should_be(client: Client, body: bytes, status: int, name: str) -> None:
    answer = client.send("POST", "/v1/reserve", body)
    assert (answer.status, answer.json["type"].rpartition(":")[2]) == (status, name)
    assert "\n" not in answer.json["detail"]


def test_a_body_of_another_kind_is_refused(client: Client) -> None:
    for media_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = client.send("POST", "/v1/reserve", b"{}", {"Content-Type": media_type})
        assert (answer.status, answer.json["type"].rpartition(":")[2]) == (415, "media-type")
    answer = client.send("POST", "/v1/reserve", b"{}", {"Content-Type": "Application/JSON; charset=utf-8"})
    assert answer.status == 422


def test_a_body_over_the_limit_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "DROP_SECONDS", 0.2)
    settings = ServerSettings(maintenance=False, max_body_bytes=1_000, max_batch_bytes=2_000)
    with sqlite_server(tmp_path, settings) as server, socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.sendall(_HEAD + b"Content-Length: 9000000\r\n\r\n")
        assert peer.recv(100).startswith(b"HTTP/1.1 413 ")
        client = Client(server.port)
        assert client.send("POST", "/v1/queues/q/tasks", b" " * 2_001).status == 413
        assert client.send("POST", "/v1/queues/q/tasks", b" " * 2_000).status == 400
        client.close()
        client = Client(server.port)
        assert client.send("POST", "/v1/dead-letters/replay", b" " * 1_001).status == 413
        client.close()


def test_a_chunked_body_over_the_limit_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "DROP_SECONDS", 0.2)
    settings = ServerSettings(maintenance=False, max_batch_bytes=2_000)
    with sqlite_server(tmp_path, settings) as server, socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.sendall(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n800\r\n" + b" " * 0x800 + b"\r\n")
        assert peer.recv(100).startswith(b"HTTP/1.1 413 ")


class _Broken(PassingStore):
    """A store that fails as it is told to."""

    error: Exception = errors.StoreUnavailable("no answer from the store")

    async def get(self, task_ids: object) -> list[Task | None]:
        raise self.error


@contextmanager
def _broken_server(directory: Path, error: Exception) -> Iterator[RunningServer]:
    def make() -> _Broken:
        store = _Broken(open_store(f"sqlite:///{directory}/tasks.db"))
        store.error = error
        return store

    with running_server(make, settings=ServerSettings(maintenance=False)) as server:
        yield server


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (errors.StoreUnavailable("away"), 503, "1"),
        (errors.DurabilityUnknown("not confirmed"), 503, "1"),
        (errors.StoreFull("full"), 507, "10"),
        (errors.StaleMap("old"), 409, "1"),
        (errors.StoreCorrupt("damaged"), 500, None),
    ],
)
def test_trouble_with_the_store(tmp_path: Path, error: HoldfastError, status: int, retry_after: str | None) -> None:
    with _broken_server(tmp_path, error) as server:
        client = Client(server.port)
        answer = client.send("GET", f"/v1/tasks/{'0' * 32}")
        client.close()
    assert (answer.status, answer.headers.get("retry-after"), answer.json["detail"]) == (
        status,
        retry_after,
        str(error),
    )


def test_what_nobody_expected_tells_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with _broken_server(tmp_path, RuntimeError("canary-4711")) as server, caplog.at_level(logging.DEBUG):
        client = Client(server.port)
        answer = client.send("GET", f"/v1/tasks/{'0' * 32}")
        client.close()
    assert answer.status == 500
    assert b"canary" not in answer.body
    assert b"Traceback" not in answer.body
    assert "canary" not in caplog.text
    assert "RuntimeError < " in caplog.text
    assert "test_problems.py" in caplog.text


def test_readiness_follows_the_store(tmp_path: Path) -> None:
    class Away(PassingStore):
        async def documents(self, kind: str, **filters: object) -> NoReturn:
            raise errors.StoreUnavailable("away")

    with running_server(
        lambda: Away(open_store(f"sqlite:///{tmp_path}/tasks.db")), settings=ServerSettings(maintenance=False)
    ) as server:
        client = Client(server.port)
        assert client.get("/healthz") == {"status": "ok"}
        assert client.get("/readyz", 503)["type"].endswith("store-unavailable")
        client.close()


def test_a_server_that_leaves_says_so(server: RunningServer, client: Client) -> None:
    async def leave() -> None:
        server.service.leave()
        await asyncio.sleep(0)

    server.call(leave())
    assert client.get("/v1/queues", 503)["type"].endswith("shutting-down")
    assert client.get("/readyz", 503)["retry_after"] == 1
    assert client.get("/healthz") == {"status": "ok"}
