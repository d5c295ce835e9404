"""Arguments as JSON and back: bound by name, checked against the function's annotations.

The signature becomes a msgspec struct once, when the task type is declared. Binding a call is then making that
struct, and checking its types is decoding it again: both in C. What is said about a wrong call is worked out
only after it failed.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, Signature
from types import UnionType
from typing import Any, Union

import msgspec

from holdfast.core import payload as json_payload
from holdfast.core.outcomes import Cancel, Snooze
from holdfast.errors import BadArguments, BadOption

_UNSET = msgspec.UNSET
_PATH = re.compile(r" - at `(?:key` in `)?\$\.?([^`]*)`")


class ArgumentCodec:
    """Turns the calls of one function into JSON bytes and back into typed arguments."""

    def __init__(self, function: Callable[..., Any], name: str, max_bytes: int = json_payload.MAX_BYTES) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self._what = f"{name}()"
        self._signature, annotations = _read(function)
        hints = _hints(function, annotations)
        self._parameters = tuple(self._signature.parameters.values())
        self._is_plain = all(map(_is_plain, self._parameters))
        self._has_defaults = any(each.default is not Parameter.empty for each in self._parameters)
        self._struct = self._make_struct(hints)
        self._decode = self._make_decoder(hints)
        self.decode_result = result_decoder(_without_outcomes(hints.get("return", Any)), self._what)

    # -- arguments ------------------------------------------------------------------------------------------

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The arguments given, as a JSON object by name, proven to decode into the annotated types."""
        try:
            bound = self._struct(*args, **kwargs) if self._is_plain else self._bind(args, kwargs)
        except TypeError:
            raise BadArguments(f"{self._what}: {self._binding_problem(args, kwargs)}") from None
        try:
            data = json_payload.encode(bound, self._what, self.max_bytes)
        except BadArguments:
            self._name_unserialisable(bound)
            raise
        if b"null" in data:  # JSON has no NaN: it would arrive as None
            _refuse_non_finite(bound, self._what)
        try:
            self._decode(data)
        except msgspec.ValidationError as error:
            raise BadArguments(f"{self._what}: {_readable(error)}") from None
        return data

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as the function takes them: `function(*args, **kwargs)`."""
        try:
            bound = self._decode(payload)
        except msgspec.MsgspecError as error:
            raise BadArguments(f"{self._what}: {_readable(error)}; it takes {self._takes()}") from None
        values = msgspec.structs.astuple(bound)
        if not self._is_plain:
            return self._unbind(values)
        if not self._has_defaults:
            return values, {}
        names = self._struct.__struct_fields__
        return (), {name: value for name, value in zip(names, values, strict=True) if value is not _UNSET}

    # -- results --------------------------------------------------------------------------------------------

    def encode_result(self, value: Any) -> bytes:
        """The function's return value as JSON bytes within the limits."""
        return encode_result(value, f"{self._what}: result", self.max_bytes)

    # -- signatures with *args, **kwargs, keyword-only or positional-only parameters --------------------------

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> msgspec.Struct:
        given = self._signature.bind(*args, **kwargs).arguments
        fields = zip(self._parameters, self._struct.__struct_fields__, strict=True)
        return self._struct(**{field: given[each.name] for each, field in fields if each.name in given})

    def _unbind(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        gap = False  # after a parameter that was left out, the rest can only go by name
        for each, value in zip(self._parameters, values, strict=True):
            if value is _UNSET:
                gap = gap or each.kind is not Parameter.VAR_POSITIONAL
            elif each.kind is Parameter.VAR_KEYWORD:
                kwargs.update(value)
            elif each.kind is Parameter.KEYWORD_ONLY or (gap and each.kind is Parameter.POSITIONAL_OR_KEYWORD):
                kwargs[each.name] = value
            elif gap:
                raise BadArguments(f"{self._what}: '{_key(each)}' needs those before it; it takes {self._takes()}")
            else:
                args.extend(value if each.kind is Parameter.VAR_POSITIONAL else (value,))
        return tuple(args), kwargs

    # -- made once ------------------------------------------------------------------------------------------

    def _make_struct(self, hints: Mapping[str, Any]) -> type[msgspec.Struct]:
        fields = [self._field(position, each, hints) for position, each in enumerate(self._parameters)]
        return msgspec.defstruct(
            "Arguments",
            fields,
            rename={field[0]: _key(each) for field, each in zip(fields, self._parameters, strict=True)},
            kw_only=not self._is_plain,
            forbid_unknown_fields=True,
            gc=False,
        )

    def _field(self, position: int, each: Parameter, hints: Mapping[str, Any]) -> tuple[str, Any, Any]:
        annotation: Any = hints.get(each.name, Any)
        name = each.name if self._is_plain else f"parameter_{position}"
        if each.kind is Parameter.VAR_POSITIONAL:
            return name, tuple.__class_getitem__((annotation, ...)), _UNSET
        if each.kind is Parameter.VAR_KEYWORD:
            return name, dict.__class_getitem__((str, annotation)), _UNSET
        return name, annotation, msgspec.NODEFAULT if each.default is Parameter.empty else _UNSET

    def _make_decoder(self, hints: Mapping[str, Any]) -> Callable[[bytes], msgspec.Struct]:
        try:
            return msgspec.json.Decoder(self._struct).decode
        except TypeError as error:
            names = ", ".join(each.name for each in self._parameters if not _decodable(hints.get(each.name, Any)))
            raise BadArguments(f"{self._what}: the annotation of {names} cannot be read from JSON: {error}") from None

    # -- saying what is wrong -------------------------------------------------------------------------------

    def _binding_problem(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return f"{next(self._binding_problems(args, kwargs))}; it takes {self._takes()}"

    def _binding_problems(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[str]:
        by_kind = {kind: [each for each in self._parameters if each.kind is kind] for kind in _KINDS}
        positional = by_kind[Parameter.POSITIONAL_ONLY] + by_kind[Parameter.POSITIONAL_OR_KEYWORD]
        named = [each.name for each in by_kind[Parameter.POSITIONAL_OR_KEYWORD] + by_kind[Parameter.KEYWORD_ONLY]]
        given = [each.name for each in positional[: len(args)]]
        if not by_kind[Parameter.VAR_KEYWORD]:
            yield from (f"unknown argument '{name}'" for name in kwargs if name not in named)
        yield from (f"argument '{name}' is given twice" for name in given if name in kwargs and name in named)
        if len(args) > len(positional) and not by_kind[Parameter.VAR_POSITIONAL]:
            yield f"too many arguments by position ({len(args)})"
        required = [each for each in self._parameters if each.default is Parameter.empty and each.kind not in _VARIADIC]
        yield from (f"missing argument '{e.name}'" for e in required if e.name not in given and e.name not in kwargs)
        yield "the arguments do not fit"

    def _takes(self) -> str:
        return ", ".join(map(_shown, self._parameters)) or "no arguments"

    def _name_unserialisable(self, bound: msgspec.Struct) -> None:
        """Raises the same error again, for the first argument that cannot be written."""
        for each, value in zip(self._parameters, msgspec.structs.astuple(bound), strict=True):
            if value is not _UNSET:
                json_payload.encode(value, f"{self._what}: {each.name}", self.max_bytes)


_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_KINDS = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY, *_VARIADIC)


def _is_plain(each: Parameter) -> bool:
    """Whether a struct can bind it as Python does; a struct would mangle names with two underscores."""
    return each.kind is Parameter.POSITIONAL_OR_KEYWORD and not each.name.startswith("__")


def _key(each: Parameter) -> str:
    """The name in the JSON object; the stars keep *args apart from an argument that is called args."""
    stars = "*" if each.kind is Parameter.VAR_POSITIONAL else "**" if each.kind is Parameter.VAR_KEYWORD else ""
    return stars + each.name


def _shown(each: Parameter) -> str:
    return _key(each) if each.default is Parameter.empty else f"{each.name}={each.default!r}"


def _read(function: Callable[..., Any]) -> tuple[Signature, dict[str, Any]]:
    """The signature and the annotations as written; names that are unknown at run time do no harm."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        signature = inspect.signature(function, annotation_format=Format.FORWARDREF)
        return signature, get_annotations(function, format=Format.FORWARDREF)
    return inspect.signature(function), inspect.get_annotations(function)


def _hints(function: Callable[..., Any], annotations: dict[str, Any]) -> dict[str, Any]:
    """The annotations as types; those that cannot be resolved (imported for type checkers only) count as Any."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError):
        names = getattr(function, "__globals__", {})
        return {name: _resolved(hint, names) for name, hint in annotations.items()}


def _resolved(hint: Any, names: dict[str, Any]) -> Any:
    def lone() -> None: ...

    lone.__annotations__ = {"hint": hint}
    try:
        return typing.get_type_hints(lone, names, include_extras=True)["hint"]
    except (NameError, AttributeError, TypeError):
        return Any


def _decodable(hint: Any) -> bool:
    try:
        msgspec.json.Decoder(hint)
    except TypeError:
        return False
    return True


def _without_outcomes(hint: Any) -> Any:
    """A return annotation without `Snooze` and `Cancel`, which are never results; Any if JSON cannot give it."""
    if typing.get_origin(hint) in (Union, UnionType):
        left = tuple(each for each in typing.get_args(hint) if each not in (Snooze, Cancel))
        hint = Union[left] if left else Any  # noqa: UP007
    return hint if hint not in (Snooze, Cancel) and _decodable(hint) else Any


def return_type(function: Callable[..., Any]) -> Any:
    """What a function is annotated to return; Any if it does not say, or if JSON cannot give it."""
    try:
        _, annotations = _read(function)
    except (TypeError, ValueError):  # some that are written in C do not tell
        return Any
    return _without_outcomes(_hints(function, annotations).get("return", Any))


def encode_result(value: Any, what: str, max_bytes: int = json_payload.MAX_BYTES) -> bytes:
    """A result as JSON bytes within the limits; `what` names it in the errors."""
    data = json_payload.encode(value, what, max_bytes)
    if b"null" in data:  # JSON has no NaN: it would arrive as None
        _refuse_non_finite(value, what)
    return data


def result_decoder(hint: Any, what: str) -> Callable[[bytes], Any]:
    """Reads results of this type; `what` names the function in the errors."""
    if not _decodable(hint):
        raise BadOption(f"{what}: a result cannot be read from JSON as {hint!r}")
    decode = msgspec.json.Decoder(hint).decode

    def decode_result(data: bytes) -> Any:
        try:
            return decode(data)
        except msgspec.MsgspecError as error:
            raise BadArguments(f"{what}: result: {_readable(error)}") from None

    return decode_result


def _readable(error: msgspec.MsgspecError) -> str:
    """The path first: `width: Expected int, got str`, not `Expected int, got str - at $.width`."""
    text = str(error)
    found = _PATH.search(text)
    return f"{found[1]}: {text[: found.start()]}" if found and found[1] else text


def _refuse_non_finite(value: Any, what: str) -> None:
    for path, number in _numbers(msgspec.to_builtins(value), ""):
        if not math.isfinite(number):
            raise BadArguments(f"{what}: {path.lstrip('.')}{': ' if path else ''}{number} cannot be written as JSON")


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield path, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _numbers(each, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for position, each in enumerate(value):
            yield from _numbers(each, f"{path}[{position}]")
