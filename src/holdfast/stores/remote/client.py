"""Calls to a server that are retried until their deadline: every one of them may be made twice."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import cached_property
from itertools import count
from typing import Final, TypeVar

import msgspec

from holdfast.errors import StoreUnavailable
from holdfast.stores.connections import CLOSED, Deadline, LoopSessions, Try
from holdfast.stores.remote.calls import IN_PART, WAIT, StoreCall, Wait
from holdfast.stores.remote.connections import TRY_SECONDS, ClosedWhileIdle, DirectConnections, Session
from holdfast.stores.remote.errors import TROUBLES, Failures, is_problem
from holdfast.stores.remote.http import Answer, request
from holdfast.stores.remote.limits import LONGEST_WAIT_MS
from holdfast.stores.remote.urls import RemoteSettings
from holdfast.version import __version__

Q = TypeVar("Q")
A = TypeVar("A")

#: How much longer than it was asked to wait a server may take to answer.
_LATE_SECONDS: Final = 5.0
#: Answers that say "not now": the call is repeated as far as its deadline goes.
_NOT_NOW: Final = frozenset({429, 502, 503, 504})
#: After the server has answered once, its token was good and may be good again.
_NO_LOGIN: Final = 401


class Client:
    """The way to one server, from every event loop and thread of this process."""

    def __init__(self, settings: RemoteSettings) -> None:
        self.settings = settings
        self._failures = Failures(settings)
        self._headers = _headers(settings)
        self._sessions = LoopSessions(lambda: Session(settings, lambda: self._tls))
        self._direct = DirectConnections(settings, lambda: self._tls)
        #: Whether the server has answered a call: what is wrong after that is not the URL, and may pass.
        self._met = False

    async def call(self, call: StoreCall[Q, A], arguments: Q, query: str = "") -> A:
        """The server's answer."""
        return self.read(call, await self.ask(call, call.write_request(arguments), query))

    async def ask(
        self,
        call: StoreCall[Q, A],
        body: bytes,
        query: str = "",
        *,
        repeat: Callable[[], bytes] | None = None,
        in_part: bool = False,
    ) -> Answer:
        """The same as it came; `repeat` gives the body of the second try and all others, if it must differ."""
        session = await self._sessions.get()
        more = f"{IN_PART}: 1\r\n".encode("ascii") if in_part else b""
        with session.call():
            return await self._retried(
                session, lambda tries: self._request(call, repeat() if tries and repeat else body, query, more)
            )

    async def listen(self, wakeups: list[str], timeout_ms: int, query: str = "") -> bool:
        """Long polls until one of them comes; trouble on the way only makes it a shorter or longer wait."""
        session = await self._sessions.get()
        deadline = Deadline(timeout_ms)
        while True:
            begun = session.loop.time()
            poll_ms = min(max(round(deadline.left() * 1000), 1), LONGEST_WAIT_MS)
            try:
                async with asyncio.timeout(poll_ms / 1000 + _LATE_SECONDS):
                    answer = await session.wait(self._request(WAIT, _wait(wakeups, poll_ms), query))
            except ClosedWhileIdle:
                continue
            except TROUBLES as error:
                if not session.closed:
                    await self._raise_if_hopeless(error)
            else:
                # Back too early: wake-ups may have been lost, which is for the caller to know.
                early = session.loop.time() - begun < poll_ms / 1000
                if self._granted(answer) and (self.read(WAIT, answer) or early or deadline.is_over()):
                    return self.read(WAIT, answer)
            if session.closed:
                raise StoreUnavailable(CLOSED)
            if deadline.is_over():
                return False
            await deadline.pause()

    def ask_now(self, call: StoreCall[Q, A], body: bytes, query: str = "") -> Answer | None:
        """One try in this very thread, which it blocks; None if anything but a whole answer came."""
        return None if self._sessions.closed else self._direct.exchange(self._request(call, body, query), TRY_SECONDS)

    def read(self, call: StoreCall[Q, A], answer: Answer) -> A:
        """What an answer says, or the error that it is."""
        if answer.status != 200:
            raise self._failures.refusal(answer)
        try:
            return call.read_answer(answer.body)
        except msgspec.DecodeError:
            raise self._failures.misunderstood(call.method) from None

    async def close(self) -> None:
        """Ends the connections of this process, those of other event loops too."""
        self._direct.close()
        await self._sessions.close()

    async def _retried(self, session: Session, request_of: Callable[[int], bytes]) -> Answer:
        deadline = Deadline(self.settings.deadline_ms)
        trouble: BaseException | None = None
        for tries in count():
            pause_seconds = 0.0
            try:
                async with Try(max(deadline.left(), 0)) as a_try:
                    answer = await session.exchange(request_of(tries), a_try)
            except ClosedWhileIdle:
                continue
            except TROUBLES as error:
                await self._raise_if_hopeless(error)
                trouble = trouble if trouble and isinstance(error, TimeoutError) else error
            else:
                if self._granted(answer):
                    return answer
                trouble = self._failures.refusal(answer)
                pause_seconds = _retry_after(answer)
            if deadline.left() <= pause_seconds:
                raise self._failures.exhausted(trouble, deadline.spent_ms()) from None
            await asyncio.sleep(pause_seconds)
            await deadline.pause()
        raise AssertionError  # pragma: no cover

    def _granted(self, answer: Answer) -> bool:
        """Whether it is an answer to what was asked; False for one that may be another the next time."""
        if answer.status == 200:
            self._met = True
            return True
        if answer.status in _NOT_NOW or (self._met and (answer.status == _NO_LOGIN or not is_problem(answer))):
            return False
        raise self._failures.refusal(answer)

    async def _raise_if_hopeless(self, error: BaseException) -> None:
        refusal = None if self._met else await self._failures.hopeless(error)
        if refusal is not None:
            raise refusal from None

    def _request(self, call: StoreCall[Q, A], body: bytes, query: str, more_headers: bytes = b"") -> bytes:
        return request("POST", f"{self.settings.prefix}{call.path}{query}", self._headers + more_headers, body)

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self.settings.ca or None) if self.settings.tls else None


def _wait(wakeups: list[str], timeout_ms: int) -> bytes:
    return WAIT.write_request(Wait(wakeups=wakeups, timeout_ms=timeout_ms))


def _headers(settings: RemoteSettings) -> bytes:
    lines = [
        f"host: {settings.place}",
        f"user-agent: holdfast/{__version__}",
        "accept: application/json",
        "content-type: application/json",
    ]
    if settings.token is not None:
        lines.append(f"authorization: Bearer {settings.token}")
    return "".join(f"{line}\r\n" for line in lines).encode("ascii")


def _retry_after(answer: Answer) -> float:
    """How many seconds the server asks to be left alone; 0 if it does not say."""
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0.0
