"""A real server on a free port, over a store of its own, and a plain way to call it."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request

from holdfast.observe.observed_store import ObservedStore
from holdfast.server.app import ROUTES
from holdfast.server.auth import Caller, Guard, Rule, Scope
from holdfast.server.process import HttpServer, listen
from holdfast.server.routing import OneOf, Route
from holdfast.server.server import Server, ServerSettings
from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from holdfast.stores.remote import problems
from holdfast.stores.remote.problems import Problem

T = TypeVar("T")

_IDLE_SECONDS = 30.0


class Anybody:
    """A caller who may do everything."""

    name = "anybody"
    scopes: Sequence[str] = ("admin",)

    def may(self, scope: Scope, queue: str | None = None) -> bool:
        return True

    def may_everywhere(self, scope: Scope) -> bool:
        return True

    def sees_secrets(self, queue: str) -> bool:
        return True

    @contextmanager
    def waiting(self) -> Iterator[asyncio.Future[None]]:
        yield asyncio.get_running_loop().create_future()


class OpenDoor:
    """A guard that lets everybody in: for tests."""

    async def check(self, request: Request, rule: Rule) -> Caller:
        return Anybody()


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def check_shape(method: str, path: str, answer: Answer) -> None:
    """Fails if an answer is not what its route, and so the document, says that it is."""
    if answer.status >= 400:
        assert answer.headers["content-type"] == problems.MEDIA_TYPE, answer
        problem = _fits(Problem, answer.body)
        assert problem.status == answer.status
        assert answer.headers.get("retry-after") == (problem.retry_after and str(problem.retry_after))
        return
    route = next(route for route in ROUTES if route.method == method and _matches(route, path))
    assert answer.status == 200 or (answer.status == 201 and route.creates), answer
    gives = route.gives
    if isinstance(gives, OneOf):
        gives = gives.other if gives.field in answer.json else gives.usual
    if gives is not None and gives is not dict:
        _fits(gives, answer.body)


def _fits(kind: Any, body: bytes) -> Any:
    """The value; every field of the body is one of its kind."""
    value = msgspec.json.decode(body, type=kind)
    assert json.loads(msgspec.json.encode(value)) == json.loads(body)
    return value


def _matches(route: Route, path: str) -> bool:
    pattern = re.sub(r"{\w+}", "[^/]+", route.path)
    return re.fullmatch(pattern, path.partition("?")[0]) is not None


class Client:
    """Requests over one connection that is kept alive."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port = port
        self._token = token
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._used_at = time.monotonic()

    def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """The answer to a request; a body that is not bytes is sent as JSON."""
        given = dict(headers or {})
        if self._token is not None:
            given.setdefault("Authorization", f"Bearer {self._token}")
        if body is not None:
            given.setdefault("Content-Type", "application/json")
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        if time.monotonic() - self._used_at > _IDLE_SECONDS:
            self._connection.close()  # the server closes it too, sooner or later; the next request opens another one
        self._used_at = time.monotonic()
        self._connection.request(method, path, data, given)
        response = self._connection.getresponse()
        answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        check_shape(method, path, answer)
        return answer

    def get(self, path: str, status: int = 200) -> Any:
        return self._expect(self.send("GET", path), status)

    def post(self, path: str, body: Any = None, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
        return self._expect(self.send("POST", path, {} if body is None else body, headers), status)

    def put(self, path: str, body: Any, status: int = 200) -> Any:
        return self._expect(self.send("PUT", path, body), status)

    def delete(self, path: str, status: int = 200) -> Any:
        return self._expect(self.send("DELETE", path), status)

    def enqueue(self, queue: str = "default", **fields: Any) -> str:
        """The id of a new task."""
        task_id: str = self.post(f"/v1/queues/{queue}/tasks", {"type": "add", **fields}, 201)["task_id"]
        return task_id

    def reserve(self, queue: str = "default", **fields: Any) -> list[dict[str, Any]]:
        """The claimed tasks."""
        body = {"worker_id": "worker-1", "queues": [queue], **fields}
        tasks: list[dict[str, Any]] = self.post("/v1/reserve", body)["tasks"]
        return tasks

    def claim(self, **fields: Any) -> dict[str, Any]:
        """A new task under a claim."""
        task_id = self.enqueue(**fields)
        (task,) = self.reserve()
        assert task["task_id"] == task_id
        return task

    def dead_letter(self, **fields: Any) -> str:
        """The id of a new task that has failed for good."""
        task = self.claim(**fields)
        error = {"type": "builtins.ValueError", "message": "bad luck"}
        body = {"token": task["token"], "error": error, "retryable": False}
        assert self.post(f"/v1/tasks/{task['task_id']}/fail", body)["state"] == "dead_lettered"
        task_id: str = task["task_id"]
        return task_id

    def close(self) -> None:
        self._connection.close()

    def _expect(self, answer: Answer, status: int) -> Any:
        assert answer.status == status, (answer.status, answer.body)
        return answer.json


class RunningServer:
    """A server that serves in a thread of this process."""

    def __init__(self, make_service: Callable[[], Server]) -> None:
        self._make_service = make_service
        self.listener = listen("127.0.0.1", 0)
        self.port: int = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.service: Server
        self.server: HttpServer
        self.loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(10)

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs something in the event loop of the server."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.service = self._make_service()
        self.server = HttpServer(self.service)
        async with self.service.opened():
            self._ready.set()
            await self.server.serve([self.listener])


def inside(server: RunningServer) -> Store:
    """The store that the server was given, below the one that counts."""
    store = server.service.store
    assert isinstance(store, ObservedStore)
    return store.inner


@contextmanager
def running_server(
    store: Callable[[], Store], guard: Guard | None = None, settings: ServerSettings | None = None
) -> Iterator[RunningServer]:
    """A server over the store that is made in its event loop; nothing of it outlives the block."""
    server = RunningServer(lambda: Server(store(), guard or OpenDoor(), settings))
    server.start()
    try:
        yield server
    finally:
        server.stop()


def sqlite_server(directory: Path, settings: ServerSettings | None = None) -> AbstractContextManager[RunningServer]:
    """A server over a SQLite file in this directory."""
    return running_server(lambda: open_store(f"sqlite:///{directory}/tasks.db"), settings=settings)
