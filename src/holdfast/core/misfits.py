"""Why a JSON value does not fit a published schema: the checks of `holdfast enqueue` and `schedules put`.

The schemas are those that `core/schemas.py` makes. A value that the worker would take must pass: what is not understood
here fits.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from itertools import repeat
from typing import Any, Final

import msgspec

from holdfast.core.declared import json_kind
from holdfast.core.schemas import LAX, REFERENCE, Schema

#: Schemas inside of each other, without a step into the value: more than this is a definition that refers to itself.
_MAX_DEPTH: Final = 50
#: How many allowed values an error names.
_MAX_NAMED: Final = 10
_MAX_SHOWN: Final = 40
_FORMATS: Final[Mapping[str, tuple[Any, str]]] = {
    "date-time": (dt.datetime, "a date with time, such as 2030-01-31T09:00:00Z"),
    "date": (dt.date, "a date, such as 2030-01-31"),
    "time": (dt.time, "a time, such as 09:00:00"),
    "duration": (dt.timedelta, "an ISO 8601 duration, such as PT30S"),
    "uuid": (uuid.UUID, "a UUID"),
    "decimal": (Decimal, "a decimal number, such as 12.50"),
}
#: Formats that Pydantic also reads from a number, or from more texts than msgspec does.
_TIMES: Final = frozenset({"date-time", "date", "time", "duration"})
_BOOLEANS: Final = frozenset({*"01tfyn", "0.0", "1.0", "on", "off", "yes", "no", "true", "false"})
_BOUNDS: Final[tuple[tuple[str, str, Callable[[Any, Any], bool]], ...]] = (
    ("minimum", "at least {}", lambda value, bound: value >= bound),
    ("maximum", "at most {}", lambda value, bound: value <= bound),
    ("exclusiveMinimum", "more than {}", lambda value, bound: value > bound),
    ("exclusiveMaximum", "less than {}", lambda value, bound: value < bound),
)
_TEXT_LENGTHS: Final[tuple[tuple[str, str, Callable[[Any, Any], bool]], ...]] = (
    ("minLength", "at least {} characters", lambda value, bound: len(value) >= bound),
    ("maxLength", "at most {} characters", lambda value, bound: len(value) <= bound),
)
_LIST_LENGTHS: Final[tuple[tuple[str, str, Callable[[Any, Any], bool]], ...]] = (
    ("minItems", "at least {} items", lambda value, bound: len(value) >= bound),
    ("maxItems", "at most {} items", lambda value, bound: len(value) <= bound),
)


class Checker:
    """Finds what does not fit a schema, in schemas that refer to these definitions."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions

    def misfit(self, value: Any, schema: Any, path: str) -> str | None:
        """The first thing that does not fit: `items[0].size: expected "s" or "m", got "xl"`; None if all of it fits."""
        return next(self._misfits(value, schema, path, lax=False, depth=0), None)

    def _misfits(self, value: Any, schema: Any, path: str, *, lax: bool, depth: int) -> Iterator[str]:
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return
        lax = lax or bool(schema.get(LAX))
        if "$ref" in schema:
            named = self._definitions.get(str(schema["$ref"]).removeprefix(REFERENCE))
            yield from self._misfits(value, named, path, lax=lax, depth=depth + 1)
        for each in schema.get("allOf", ()):
            yield from self._misfits(value, each, path, lax=lax, depth=depth + 1)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                yield from self._of_several(value, schema[key], path, lax=lax, depth=depth)
        expected = _unlike(value, schema, lax=lax)
        if expected:
            yield f"{path}: expected {expected}, got {_shown(value)}"
        elif isinstance(value, list):
            yield from self._in_list(value, schema, path, lax=lax)
        elif isinstance(value, dict):
            yield from self._in_object(value, schema, path, lax=lax)

    def _of_several(self, value: Any, several: list[Schema], path: str, *, lax: bool, depth: int) -> Iterator[str]:
        found = []
        for each in several:
            problem = next(self._misfits(value, each, path, lax=lax, depth=depth + 1), None)
            if problem is None:
                return
            found.append(problem)
        deeper = [problem for problem in found if not problem.startswith(f"{path}: ")]
        if len(deeper) == 1:  # the only one of them that is of this kind: what is wrong is inside
            yield deeper[0]
            return
        expected = dict.fromkeys(problem.partition(": expected ")[2].rpartition(", got ")[0] for problem in found)
        expected.pop("", None)
        yield f"{path}: expected {' or '.join(expected) or 'another value'}, got {_shown(value)}"

    def _in_list(self, value: list[Any], schema: Schema, path: str, *, lax: bool) -> Iterator[str]:
        first = schema.get("prefixItems", [])
        kinds = [*first, *repeat(schema.get("items", {}), max(0, len(value) - len(first)))]
        for position, (each, kind) in enumerate(zip(value, kinds, strict=False)):
            yield from self._misfits(each, kind, f"{path}[{position}]", lax=lax, depth=0)

    def _in_object(self, value: dict[str, Any], schema: Schema, path: str, *, lax: bool) -> Iterator[str]:
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{path}: the field {name!r} is missing"
        known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name, each in value.items():
            if name not in known and others is False:
                yield f"{path}: unknown field {name!r}; it has {', '.join(known) or 'none'}"
            yield from self._misfits(each, known.get(name, others), f"{path}.{name}", lax=lax, depth=0)


# -- one value -------------------------------------------------------------------------------------------------


def _unlike(value: Any, schema: Schema, *, lax: bool) -> str:
    """What was expected instead of this value, by itself; empty if it fits."""
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if allowed is not None:
        return "" if any(_same(value, each, lax=lax) for each in allowed) else _choice(allowed)
    kinds = schema.get("type")
    name = str(schema.get("format"))
    if name in _FORMATS and kinds == "string":
        return "" if _has_format(value, name, lax=lax) else _FORMATS[name][1]
    if schema.get("contentEncoding") == "base64" and not lax:
        return "" if _converts(value, bytes) else "base64 text"
    if kinds is not None:
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not any(_is_kind(value, kind, lax=lax) for kind in kinds):
            return " or ".join(kinds)
    return _out_of_bounds(value, schema)


def _out_of_bounds(value: Any, schema: Schema) -> str:
    checks = {"integer": _BOUNDS, "number": _BOUNDS, "string": _TEXT_LENGTHS, "array": _LIST_LENGTHS}
    for key, words, fits in checks.get(json_kind(value), ()):
        if key in schema and not fits(value, schema[key]):
            return words.format(schema[key])
    return ""


def _is_kind(value: Any, kind: str, *, lax: bool) -> bool:
    actual = json_kind(value)
    if actual == kind or (actual == "integer" and kind == "number"):
        return True
    return lax and actual in {"boolean", "integer", "number", "string"} and _is_read_as(value, kind)


def _is_read_as(value: Any, kind: str) -> bool:
    """Whether Pydantic may read a scalar as this kind."""
    if kind == "boolean":
        return str(value).strip().lower() in _BOOLEANS
    if kind not in {"integer", "number"}:
        return False
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return False
    return kind == "number" or number.is_integer()


def _has_format(value: Any, name: str, *, lax: bool) -> bool:
    if _converts(value, _FORMATS[name][0]):
        return True
    if not lax:
        return False
    if name == "uuid":
        try:
            return isinstance(value, str) and bool(uuid.UUID(value))
        except ValueError:
            return False
    # Pydantic reads numbers, and more forms of times than one: what begins like one is left to it.
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return name in _TIMES and (is_number or (isinstance(value, str) and value.strip().lstrip("+-P")[:1].isdigit()))


def _converts(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _same(value: Any, allowed: Any, *, lax: bool) -> bool:
    if isinstance(value, bool) or isinstance(allowed, bool):
        return value is allowed or (lax and str(value) == str(allowed))
    return bool(value == allowed) or (lax and str(value) == str(allowed))


def _choice(allowed: list[Any]) -> str:
    texts = [_shown(each) for each in allowed[:_MAX_NAMED]] + (["…"] if len(allowed) > _MAX_NAMED else [])
    return f"{', '.join(texts[:-1])} or {texts[-1]}" if len(texts) > 1 else "".join(texts)


def _shown(value: Any) -> str:
    """A short value as it is written, a longer one as its kind."""
    if isinstance(value, (list, dict)):
        return json_kind(value)
    text = msgspec.json.encode(value).decode(errors="replace")
    return text if len(text) <= _MAX_SHOWN else json_kind(value)
