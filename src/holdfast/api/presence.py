"""A client that goes away is not waited for, nor one whose token is no longer good."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.requests import Request

from holdfast.api.guard import Denied
from holdfast.wire import problems

if TYPE_CHECKING:
    from holdfast.api.routing import Call

T = TypeVar("T")


_NO_LONGER_GOOD: Final = problems.UNAUTHORIZED.problem("this token is no longer good")


class ClientGone(Exception):
    """There is nobody to answer."""


async def while_there(call: Call, work: Coroutine[Any, Any, T]) -> T:
    """What the work comes to; it is ended as soon as the client has gone. The body must have been read."""
    with contextlib.closing(work), call.caller.waiting() as ended:
        gone = asyncio.ensure_future(_gone(call.request))
        try:
            async with asyncio.timeout(None) as presence:
                stop = functools.partial(_stop, presence)
                gone.add_done_callback(stop)
                ended.add_done_callback(stop)
                try:
                    return await work
                finally:
                    gone.remove_done_callback(stop)
                    ended.remove_done_callback(stop)
        except TimeoutError:
            if not presence.expired():
                raise
            raise Denied(_NO_LONGER_GOOD) if ended.done() else ClientGone from None
        finally:
            gone.cancel()


def _stop(presence: asyncio.Timeout, _: object) -> None:
    with contextlib.suppress(RuntimeError):  # the work was done in the very moment in which the client left
        presence.reschedule(asyncio.get_running_loop().time())


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
