"""Arrays and values of composite types in PostgreSQL's binary form, made in a few steps for a whole batch.

psycopg would make each element by itself, and the server would put a composite value together from its fields, whose
types it looks up for every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEADER: Final = Struct("!iIIii")  # dimensions, has NULLs, type of the elements, their number, first index
_LENGTH: Final = Struct("!i")
_NULL: Final = _LENGTH.pack(-1)
_FIELD: Final = Struct("!Ii")  # type, length
_INT4_ELEMENT: Final = Struct("!ii")
_INT8_ELEMENT: Final = Struct("!iq")
_INT4_FIELD: Final = Struct("!Iii")
_INT8_FIELD: Final = Struct("!Iiq")
_UUID, _UUID_ARRAY = 2950, 2951
_BYTEA, _BYTEA_ARRAY = 17, 1001
_TEXT, _TEXT_ARRAY = 25, 1009
_INT4, _INT4_ARRAY = 23, 1007
_INT8, _INT8_ARRAY = 20, 1016
_JSON: Final = 114


class Uuids(bytes):
    """An array of ids."""


class Blobs(bytes):
    """An array of bytes."""


class Texts(bytes):
    """An array of texts."""


class Composite(bytes):
    """A value of a composite type; which one, the function that takes it says."""


# -- arrays --------------------------------------------------------------------------------------------------


def uuids(ids: Sequence[str]) -> Uuids:
    """Ids of 32 hex digits each."""
    header = _HEADER.pack(1, 0, _UUID, len(ids), 1).hex()
    return Uuids.fromhex(f"{header}00000010{'00000010'.join(ids)}" if ids else _empty(_UUID).hex())


def blobs(values: Sequence[bytes | None]) -> Blobs:
    """Bytes, or None."""
    return Blobs(_packed(_BYTEA, values))


def texts(values: Sequence[str | None]) -> Texts:
    """Texts, or None."""
    return Texts(_packed(_TEXT, [None if value is None else value.encode() for value in values]))


def _packed(element: int, values: Sequence[bytes | None]) -> bytes:
    if not values:
        return _empty(element)
    length = _LENGTH.pack
    parts = [_NULL if value is None else length(len(value)) + value for value in values]
    return _HEADER.pack(1, None in values, element, len(values), 1) + b"".join(parts)


def _empty(element: int) -> bytes:
    return _HEADER.pack(0, 0, element, 0, 0)[:12]


# -- composite values, and their fields in the order in which the type has them ------------------------------


def composite(*fields: bytes) -> Composite:
    """A value of a composite type with these fields."""
    return Composite(_LENGTH.pack(len(fields)) + b"".join(fields))


def int4(value: int | None) -> bytes:
    """A field of type integer."""
    return _FIELD.pack(_INT4, -1) if value is None else _INT4_FIELD.pack(_INT4, 4, value)


def int8(value: int | None) -> bytes:
    """A field of type bigint."""
    return _FIELD.pack(_INT8, -1) if value is None else _INT8_FIELD.pack(_INT8, 8, value)


def text(value: str | None) -> bytes:
    """A field of type text."""
    return _field(_TEXT, None if value is None else value.encode())


def json_text(value: str | None) -> bytes:
    """A field of type json."""
    return _field(_JSON, None if value is None else value.encode())


def blob(value: bytes | None) -> bytes:
    """A field of type bytea."""
    return _field(_BYTEA, value)


def uuid(value: str | None) -> bytes:
    """A field of type uuid, from 32 hex digits."""
    return _field(_UUID, None if value is None else bytes.fromhex(value))


def uuid_array(value: Uuids | None) -> bytes:
    """A field of type uuid[]."""
    return _field(_UUID_ARRAY, value)


def blob_array(value: Blobs | None) -> bytes:
    """A field of type bytea[]."""
    return _field(_BYTEA_ARRAY, value)


def text_array(value: Texts | None) -> bytes:
    """A field of type text[]."""
    return _field(_TEXT_ARRAY, value)


def int4_array(values: Sequence[int] | None) -> bytes:
    """A field of type integer[]."""
    if not values:
        return _field(_INT4_ARRAY, None if values is None else _empty(_INT4))
    pack = _INT4_ELEMENT.pack
    data = _HEADER.pack(1, 0, _INT4, len(values), 1) + b"".join([pack(4, value) for value in values])
    return _field(_INT4_ARRAY, data)


def int8_array(values: Sequence[int | None]) -> bytes:
    """A field of type bigint[]."""
    if not values:
        return _field(_INT8_ARRAY, _empty(_INT8))
    pack = _INT8_ELEMENT.pack
    parts = [_NULL if value is None else pack(8, value) for value in values]
    return _field(_INT8_ARRAY, _HEADER.pack(1, None in values, _INT8, len(values), 1) + b"".join(parts))


def _field(kind: int, value: bytes | None) -> bytes:
    return _FIELD.pack(kind, -1) if value is None else _FIELD.pack(kind, len(value)) + value


# -- for psycopg ---------------------------------------------------------------------------------------------


class _AsItIs(Dumper):
    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        """The value, which is made already."""
        return obj


def _register() -> None:
    for kind, oid in ((Uuids, _UUID_ARRAY), (Blobs, _BYTEA_ARRAY), (Texts, _TEXT_ARRAY), (Composite, 0)):
        dumper = type(f"{kind.__name__}Dumper", (_AsItIs,), {"oid": oid})
        psycopg.adapters.register_dumper(kind, dumper)


_register()
