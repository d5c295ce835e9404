"""Reading the body of a request: not more than allowed, not slower than bearable, JSON in UTF-8."""

from __future__ import annotations

import asyncio
from typing import Final, NoReturn, Self

import msgspec
from starlette.requests import ClientDisconnect, Request

from holdfast.api.guard import Denied
from holdfast.core import payload
from holdfast.wire import problems
from holdfast.wire.limits import SMALL_BODY_BYTES

#: A body that is not here by then is not waited for.
_PATIENCE_SECONDS: Final = 30.0


class BodyRoom:
    """The room for bodies that are under way at one gateway; small ones need none, so that they are never refused."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        #: What the bodies that are under way have taken.
        self.taken = 0

    def share(self) -> BodyShare:
        """That of one request."""
        return BodyShare(self)


class BodyShare:
    """What one body takes of the room; given back at the end of the block, however that comes."""

    __slots__ = ("_held", "_room")

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self._held = 0

    def grow(self, body_bytes: int) -> bool:
        """Makes room for a body that has come to this size; False if there is none."""
        more = body_bytes - SMALL_BODY_BYTES - self._held
        if more > 0:
            if self._room.taken + more > self._room.max_bytes:
                return False
            self._room.taken += more
            self._held += more
        return True

    def give_back(self) -> None:
        """Nothing of the body is kept any longer."""
        self._room.taken -= self._held
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()


async def read_json(request: Request, max_bytes: int, share: BodyShare) -> bytes:
    """The body, which is UTF-8, not too large and not too deep; whether it is JSON is seen by whoever decodes it."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Denied(problems.MEDIA_TYPE_NOT_SUPPORTED.problem("send Content-Type: application/json"))
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        _refuse_size(max_bytes)
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            body = await _read(request, max_bytes, share)
    except TimeoutError:
        raise Denied(problems.TOO_SLOW.problem(f"a body has to be here within {_PATIENCE_SECONDS:g} s")) from None
    _check(body)
    return body


async def _read(request: Request, max_bytes: int, share: BodyShare) -> bytes:
    chunks: list[bytes] = []
    size = 0
    fits = True
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                _refuse_size(max_bytes)
            fits = fits and share.grow(size)
            if not fits:
                # Read to its end all the same: who is cut off while he sends does not see the answer.
                chunks.clear()
                share.give_back()
            elif chunk:
                chunks.append(chunk)
    except ClientDisconnect:
        raise Denied(problems.TOO_SLOW.problem("the client has gone")) from None
    if not fits:
        raise Denied(problems.BUSY.problem("large bodies of other requests are under way; send it again"))
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _check(body: bytes) -> None:
    if not body.isascii():
        try:
            str(body, "utf-8")
        except UnicodeDecodeError as error:
            raise Denied(problems.BAD_JSON.problem(f"byte {error.start} of the body is not UTF-8")) from None
    if not body.strip():
        raise Denied(problems.BAD_JSON.problem("the body is empty; send at least {}"))


def bad_json(error: Exception) -> Denied:
    """The refusal of a body that could not be decoded."""
    if isinstance(error, msgspec.ValidationError):
        return Denied(problems.INVALID.problem(str(error)))
    if isinstance(error, RecursionError):
        return Denied(problems.TOO_DEEP.problem(f"arguments may be nested {payload.MAX_DEPTH} levels deep"))
    return Denied(problems.BAD_JSON.problem(str(error)))


def _refuse_size(max_bytes: int) -> NoReturn:
    raise Denied(
        problems.BODY_TOO_LARGE.problem(f"the limit is {max_bytes:,} bytes; send less, or in several requests")
    )
