"""Reads and decodes the body of a request: limited in bytes and in time, without blocking the event loop.

A small body is decoded at once. A large one is first cut into its fields and items, which is much faster than decoding
and stops at the first item over the limit. Then each item is decoded by itself, and other requests run in between.
"""

from __future__ import annotations

import asyncio
import codecs
import functools
import operator
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.inspect import DictType, FrozenSetType, ListType, StructType, Type, UnionType, VarTupleType, type_info
from starlette.requests import ClientDisconnect, Request

from holdfast.core import payload
from holdfast.server.auth import Denied
from holdfast.server.budgets import PART_BYTES, CpuSlices, Share
from holdfast.stores.contract import MAX_BATCH
from holdfast.stores.remote import problems
from holdfast.stores.remote.limits import MAX_FIELD_BYTES, MAX_MAPPING_BYTES

#: A body has to arrive within this time.
BODY_SECONDS: Final = 30.0
#: Called with each item of a batch as soon as it is decoded; refuses it by an error.
CheckItem = Callable[[Any], None]
#: Some bytes of the body.
Part = memoryview
#: Cuts a list into its items.
_cut_list: Final = msgspec.json.Decoder(
    msgspec.defstruct(
        "Items",
        [(f"item_{number}", Raw | UnsetType, UNSET) for number in range(MAX_BATCH)],
        array_like=True,
        forbid_unknown_fields=True,
    )
)
_CONTAINERS: Final = frozenset({ListType, VarTupleType, FrozenSetType, StructType})


# -- reading -------------------------------------------------------------------------------------------------------


async def read_json(request: Request, max_bytes: int, share: Share) -> bytes:
    """The body: UTF-8, within its size limit, not yet decoded."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Denied(problems.MEDIA_TYPE_NOT_SUPPORTED.problem("send Content-Type: application/json"))
    declared = request.headers.get("content-length", "")
    if declared.isdecimal():
        if int(declared) > max_bytes:
            _refuse_size(max_bytes)
        await share.wait(int(declared))  # before it is read: until then it is in the memory of the client
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await _read(request, max_bytes, share)
    except TimeoutError:
        raise Denied(problems.TOO_SLOW.problem(f"a body has to be here within {BODY_SECONDS:g} s")) from None
    if not body or body.isspace():
        raise Denied(problems.BAD_JSON.problem("the body is empty; send at least {}"))
    return body


async def _read(request: Request, max_bytes: int, share: Share) -> bytes:
    chunks: list[bytes] = []
    size = 0
    text = codecs.getincrementaldecoder("utf-8")()
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                _refuse_size(max_bytes)
            _check(chunk, size, share, text)
            if chunk:
                chunks.append(chunk)
    except ClientDisconnect:
        raise Denied(problems.TOO_SLOW.problem("the client has gone")) from None
    _check(b"", size, share, text, final=True)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _check(chunk: bytes, size: int, share: Share, text: codecs.IncrementalDecoder, *, final: bool = False) -> None:
    """Refuses a body for which there is no memory, or that is not UTF-8."""
    if not share.grow(size):
        raise Denied(problems.BUSY.problem("large bodies of other requests are under way; send it again"))
    begun = len(text.getstate()[0])  # of a character whose first bytes were in the chunk before
    if begun or final or not chunk.isascii():
        try:
            text.decode(chunk, final)
        except UnicodeDecodeError as error:
            byte = size - len(chunk) - begun + error.start
            raise Denied(problems.BAD_JSON.problem(f"byte {byte} of the body is not UTF-8")) from None


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


# -- decoding ------------------------------------------------------------------------------------------------------


class OneOf(msgspec.Struct, frozen=True):
    """Either of two shapes: the other one, if it has the field that only that one has."""

    usual: Any
    other: Any
    field: str


def decoder(kind: Any, check_item: CheckItem | None = None) -> Callable[[bytes], Awaitable[Any]]:
    """The decoder for bodies of this shape."""
    if not isinstance(kind, OneOf):
        return _Body(kind, check_item).decode
    usual, other = _Body(kind.usual, check_item), _Body(kind.other, check_item)
    cut = _cutter({**usual.fields, **other.fields})
    fields = msgspec.json.Decoder(dict[str, Raw])

    async def decode(body: bytes) -> Any:
        is_other = kind.field in (fields.decode(body) if len(body) < PART_BYTES else _parts(cut.decode(body)))
        await CpuSlices().after(len(body))
        return await (other if is_other else usual).decode(body)

    return decode


class _Body:
    """The decoder of one shape."""

    def __init__(self, kind: type[msgspec.Struct], check_item: CheckItem | None) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._check_item = check_item
        self.fields = _fields(kind)
        self._cut = _cutter(self.fields)
        #: Its lists of structs.
        self._batches = {name: _Item(structs) for name, info in self.fields.items() if (structs := _batch_of(info))}

    async def decode(self, body: bytes) -> Any:
        """What the body says."""
        if len(body) < PART_BYTES:
            return self._decoder.decode(body)
        slices = CpuSlices()
        parts = _parts(self._cut.decode(body))
        lists: dict[str, list[Part]] = {}
        for name in self._batches.keys() & parts.keys():
            await slices.after(len(parts[name]))
            lists[name] = _items_of(name, parts[name])
            await slices.after(len(parts[name]))
            parts[name] = memoryview(b"[]")
        _check_sizes(parts, self.fields)
        # What is left is small. Its own decoder sees whether all is there that the shape asks for.
        rest = b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), bytes(part)) for name, part in parts.items())
        value = self._decoder.decode(rest)
        batches = {name: [item async for item in self._items(name, items, slices)] for name, items in lists.items()}
        return msgspec.structs.replace(value, **batches)

    async def _items(self, name: str, items: list[Part], slices: CpuSlices) -> AsyncIterator[Any]:
        for data in items:
            item = self._batches[name].decode(data)
            if self._check_item is not None:
                self._check_item(item)
            yield item
            await slices.after(len(data))


class _Item:
    """One item of a batch, of one of these shapes."""

    def __init__(self, structs: list[StructType]) -> None:
        self._decoder = msgspec.json.Decoder(functools.reduce(operator.or_, [struct.cls for struct in structs]))
        self._fields = {name: info for struct in structs for name, info in _fields(struct.cls).items()}
        tags = {struct.tag_field: None for struct in structs if struct.tag_field}
        self._cut = _cutter({**self._fields, **tags})

    def decode(self, data: Part) -> Any:
        """What the item says."""
        if len(data) >= PART_BYTES:
            _check_sizes(_parts(self._cut.decode(data)), self._fields)
        return self._decoder.decode(data)


def _fields(kind: type[msgspec.Struct]) -> dict[str, Type]:
    return {field.encode_name: type_info(field.type) for field in msgspec.structs.fields(kind)}


def _cutter(fields: Mapping[str, object]) -> msgspec.json.Decoder[Any]:
    """Cuts an object into these fields; any other is refused."""
    made = [(name, Raw | UnsetType, UNSET) for name in fields]
    return msgspec.json.Decoder(msgspec.defstruct("Fields", made, forbid_unknown_fields=True))


def _parts(cut: msgspec.Struct) -> dict[str, Part]:
    """What is there, as it was sent, without a copy of it."""
    return {name: memoryview(part) for name, part in msgspec.structs.asdict(cut).items() if part is not UNSET}


def _items_of(name: str, part: Part) -> list[Part]:
    try:
        return list(_parts(_cut_list.decode(part)).values())
    except msgspec.ValidationError as error:
        if bytes(part[:1]) != b"[":
            raise
        raise msgspec.ValidationError(f"{name}: {MAX_BATCH:,} are the most in one request") from error


def _batch_of(info: Type) -> list[StructType]:
    """The shapes of the items, if it is a list of structs and nothing else."""
    lists = [each for each in _choices(info) if isinstance(each, ListType)]
    items = [item for each in lists for item in _choices(each.item_type)]
    structs = [item for item in items if isinstance(item, StructType)]
    return structs if len(structs) == len(items) else []


def _choices(info: Type) -> list[Type]:
    info = getattr(info, "type", info)  # without what its annotation says
    return list(info.types) if isinstance(info, UnionType) else [info]


def _check_sizes(parts: Mapping[str, Part], fields: Mapping[str, Type]) -> None:
    """Refuses a field that would block the event loop while it is decoded."""
    for name, part in parts.items():
        most = _max_bytes(fields[name]) if name in fields else None
        if most is not None and len(part) > most:
            raise msgspec.ValidationError(f"{name}: {len(part):,} bytes of JSON, the limit is {most:,}")


def _max_bytes(info: Type) -> int | None:
    """Texts and what is kept byte for byte have limits of their own, and cost little."""
    kinds = tuple(map(type, _choices(info)))
    if DictType in kinds:
        return MAX_MAPPING_BYTES
    return MAX_FIELD_BYTES if _CONTAINERS.intersection(kinds) else None
