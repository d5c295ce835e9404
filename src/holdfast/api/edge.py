"""What every request passes first and every answer last, whatever the route, and if there is none."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api.failures import problem_response, where
from holdfast.api.headers import secured
from holdfast.api.origins import objection
from holdfast.wire import problems
from holdfast.wire.problems import Problem

log = logging.getLogger("holdfast.api")

#: Of the address and the headers of a request.
MAX_HEAD_BYTES: Final = 32 * 1024


class Edge:
    """Refuses requests that no route should see, and sees to it that nothing leaves but an answer with our headers."""

    def __init__(self, app: ASGIApp, names: Collection[str] = ()) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(scope, send)
        problem = self._refusal(scope)
        if problem is not None:
            await problem_response(problem)(scope, receive, answer.send)
            return
        try:
            await self._app(scope, receive, answer.send)
        except Exception as error:  # noqa: BLE001  (the server would log its message, which may quote a secret)
            log.error("%s %s: %s", scope["method"], "a request", where(error))
            if not answer.begun:
                await problem_response(problems.INTERNAL.problem())(scope, receive, answer.send)

    def _refusal(self, scope: Scope) -> Problem | None:
        size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > MAX_HEAD_BYTES:
            return problems.HEAD_TOO_LARGE.problem(f"the limit is {MAX_HEAD_BYTES:,} bytes, the address included")
        return objection(scope, self._names)


class _Answer:
    """One answer on its way out."""

    __slots__ = ("_scheme", "_send", "begun")

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scheme = scope.get("scheme")
        self._send = send
        self.begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            message["headers"] = secured(message.get("headers", ()), tls=self._scheme == "https")
        await self._send(message)
