"""Arrays as PostgreSQL takes them, made in a few steps for a whole batch: psycopg would make each element by itself."""

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
_UUID, _UUID_ARRAY = 2950, 2951
_BYTEA, _BYTEA_ARRAY = 17, 1001
_TEXT, _TEXT_ARRAY = 25, 1009


class Uuids(bytes):
    """An array of ids."""


class Blobs(bytes):
    """An array of bytes."""


class Texts(bytes):
    """An array of texts."""


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


class _AsItIs(Dumper):
    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        """The array, which is made already."""
        return obj


def _register() -> None:
    for kind, oid in ((Uuids, _UUID_ARRAY), (Blobs, _BYTEA_ARRAY), (Texts, _TEXT_ARRAY)):
        dumper = type(f"{kind.__name__}Dumper", (_AsItIs,), {"oid": oid})
        psycopg.adapters.register_dumper(kind, dumper)


_register()
