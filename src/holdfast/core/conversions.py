"""Values that JSON does not have: how they are written and restored, and which of them would be changed silently.

msgspec writes and restores dataclasses, attrs classes, structs, enums, dates, UUIDs, decimals, bytes, sets and tuples
by their annotation. Here are the types that it leaves to us (`Path`, Pydantic models), the check of an annotation when
a task is declared, and the search for a value whose annotation does not say how to restore it.
"""

from __future__ import annotations

import datetime as dt
import enum
import itertools
import typing
from collections.abc import Iterator
from decimal import Decimal
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Union
from uuid import UUID

import msgspec

#: Annotations that need no closer look.
_PLAIN: Final = frozenset(
    {
        Any,
        str,
        int,
        float,
        bool,
        None,
        NoneType,
        bytes,
        list,
        dict,
        tuple,
        set,
        frozenset,
        dt.datetime,
        dt.date,
        Decimal,
    }
    | {dt.time, dt.timedelta, UUID}
)
_CONTAINERS: Final = frozenset({list, dict, tuple, set, frozenset, Union, UnionType, typing.Literal})
_JSON_TYPES: Final = (str, int, float, bool, list, dict, NoneType)
#: How many problems of a Pydantic model are named at most.
_MAX_PROBLEMS: Final = 3


# -- the hooks of msgspec --------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """What is written for a value that msgspec does not know; `TypeError` if there is nothing."""
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, str):  # of a subclass, such as Django's SafeString
        return str.__str__(value)
    if is_pydantic(type(value)):
        return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True).encode())
    if isinstance(value, msgspec.Raw):  # asked again by `to_builtins`, which does not know it
        return msgspec.json.decode(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def from_json(kind: type, value: Any) -> Any:
    """The value of this type for what was read; `ValueError` if it does not fit, in one line."""
    if is_pydantic(kind):
        return _validated(kind, value)
    if issubclass(kind, PurePath):
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
        return kind(value)
    return value  # of an abstract class: msgspec checks that this is an instance


def is_pydantic(kind: type) -> bool:
    """Whether it is a Pydantic model; the package is not imported to find out."""
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate_json")


def _validated(kind: Any, value: Any) -> Any:
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:  # so is a ValidationError
        problems = error.errors(include_url=False) if hasattr(error, "errors") else []
        texts = [f"{'.'.join(map(str, each['loc'])) or kind.__name__}: {each['msg']}" for each in problems]
        more = f" and {len(texts) - _MAX_PROBLEMS} more" if len(texts) > _MAX_PROBLEMS else ""
        raise ValueError("; ".join(texts[:_MAX_PROBLEMS]) + more or str(error)) from None


# -- annotations, when a task is declared ----------------------------------------------------------------------


def unusable(hint: Any, *, reading: bool = True) -> str:
    """Why a value of this annotation cannot be written as JSON, or be read from it; empty if it can."""
    if _is_plain(hint):
        return ""
    import msgspec.inspect

    try:
        info = msgspec.inspect.type_info(hint)
    except TypeError as error:
        return str(error) if reading else ""
    for kind in _custom_types(info, set()):
        if not _is_supported(kind):
            return f"{kind.__module__}.{kind.__qualname__} cannot be written as JSON"
    return ""


def _is_plain(hint: Any) -> bool:
    try:
        if hint in _PLAIN:
            return True
    except TypeError:  # not hashable
        return False
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return all(isinstance(each, (str, int, NoneType)) for each in typing.get_args(hint))
    # A union is left to msgspec, unless it is one with None.
    arguments = [each for each in typing.get_args(hint) if each is not Ellipsis]
    if origin in {Union, UnionType} and len([each for each in arguments if each is not NoneType]) > 1:
        return False
    return origin in _CONTAINERS and all(map(_is_plain, arguments))


def _is_supported(kind: type) -> bool:
    if is_pydantic(kind):
        return True
    try:
        # An abstract class, such as Iterable: a value of JSON may be one.
        return issubclass(kind, PurePath) or any(issubclass(each, kind) for each in _JSON_TYPES)
    except TypeError:
        return False


def _custom_types(info: Any, seen: set[int]) -> Iterator[type]:
    """The types in an annotation that msgspec leaves to the hooks."""
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        yield info.cls
    for field in getattr(info, "fields", ()):
        yield from _custom_types(field.type, seen)
    for each in (*getattr(info, "types", ()), *_inner(info)):
        yield from _custom_types(each, seen)


def _inner(info: Any) -> tuple[Any, ...]:
    names = ("key_type", "value_type", "item_type")
    several = getattr(info, "item_types", ())
    return (*several, *(getattr(info, name) for name in names if hasattr(info, name)))


# -- values that would be changed ------------------------------------------------------------------------------


class Loss(NamedTuple):
    """A value that would not arrive as it was given: where it is, what it is, and as what it would arrive."""

    path: str
    what: str
    arrives_as: str

    def advice(self, parameter: str) -> str:
        """What to do about it."""
        if self.arrives_as == _ANOTHER:
            return "give that field a serializer whose output its validator takes"
        if self.path == parameter and not self.what.startswith("the key"):
            return f"declare it as `{parameter}: {self.what}`, or pass {_a(self.arrives_as)}"
        return f"declare `{parameter}` with the types inside it, or pass {_a(self.arrives_as)}"


_ANOTHER: Final = "another value"


def _a(name: str) -> str:
    return f"{'an' if name[:1].lower() in {*'aeiou'} else 'a'} {name}"


def _type_name(value: Any) -> str:
    """The type as an annotation should have it: `Path`, not that of this system."""
    name = type(value).__name__
    return name.replace("Posix", "").replace("Windows", "") if isinstance(value, PurePath) else name


def first_loss(value: Any, decoded: Any, hint: Any, path: str) -> Loss | None:
    """The first value in it that its annotation does not restore; None if the annotation accounts for all of them."""
    import msgspec.inspect

    return next(_losses(value, decoded, msgspec.inspect.type_info(hint), path), None)


def _losses(value: Any, decoded: Any, info: Any, path: str) -> Iterator[Loss]:
    if isinstance(info, msgspec.inspect.UnionType):
        types = [each for each in info.types if not isinstance(each, msgspec.inspect.NoneType)]
        info = types[0] if len(types) == 1 else None
    if isinstance(info, msgspec.inspect.CustomType):
        if is_pydantic(info.cls):
            yield from _model_losses(value, decoded, path)
        elif not issubclass(info.cls, PurePath):
            yield from _unplain(value, path)
    elif isinstance(info, msgspec.inspect.AnyType):
        yield from _unplain(value, path)
    else:
        for each, got, kind, where in _parts(value, decoded, info):
            yield from _losses(each, got, kind, path + where)


def _parts(value: Any, decoded: Any, info: Any) -> Iterator[tuple[Any, Any, Any, str]]:
    """What a container has in it: each part as given and as it would arrive, its type, and its place."""
    if isinstance(info, msgspec.inspect.DictType) and isinstance(value, dict):
        yield dict.fromkeys(value), decoded, info.key_type, ""
        for (key, each), got in zip(value.items(), decoded.values(), strict=False):
            yield each, got, info.value_type, f".{key}"
    elif isinstance(info, (msgspec.inspect.SetType, msgspec.inspect.FrozenSetType)):
        yield from ((each, each, info.item_type, "") for each in value)
    elif hasattr(info, "item_types") or hasattr(info, "item_type"):
        kinds = getattr(info, "item_types", None) or itertools.repeat(info.item_type)
        for position, (each, got, kind) in enumerate(zip(value, decoded, kinds, strict=False)):
            yield each, got, kind, f"[{position}]"
    for field in getattr(info, "fields", ()):
        each, got = _field(value, field.name), _field(decoded, field.name)
        if each != got:
            yield each, got, field.type, f".{field.name}"


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def _model_losses(value: Any, decoded: Any, path: str) -> Iterator[Loss]:
    """What a Pydantic model loses: the fields of its subclass, a secret, a field of type Any."""
    if not isinstance(value, type(decoded)) or not isinstance(decoded, type(value)):
        yield Loss(path, type(value).__name__, type(decoded).__name__)
        return
    given, got = (each.model_dump(round_trip=True) for each in (value, decoded))
    for name in given:
        if name not in got or given[name] != got[name]:
            yield Loss(f"{path}.{name}", type(given[name]).__name__, _ANOTHER)


def _unplain(value: Any, path: str) -> Iterator[Loss]:
    """What is not JSON in a value that no annotation restores."""
    if value is None or isinstance(value, (str, int, float)):
        return
    if isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, str):
                yield Loss(path, f"the key {key!r}", "str")
            yield from _unplain(each, f"{path}.{key}")
    elif isinstance(value, list):
        for position, each in enumerate(value):
            yield from _unplain(each, f"{path}[{position}]")
    else:
        yield Loss(path, _type_name(value), _arrives_as(value))


def _arrives_as(value: Any) -> str:
    if isinstance(value, (set, frozenset, tuple)):
        return "list"
    if isinstance(value, enum.Enum):
        return type(value.value).__name__
    texts = (bytes, bytearray, memoryview, dt.date, dt.time, dt.timedelta, UUID, Decimal, PurePath)
    return "str" if isinstance(value, texts) else "dict"
