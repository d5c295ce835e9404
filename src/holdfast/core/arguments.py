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
from collections.abc import Callable, Iterator
from functools import partial
from inspect import Parameter, Signature
from types import UnionType
from typing import Any, Final, Union

import msgspec

from holdfast.core import payload as json_payload
from holdfast.core.conversions import first_loss, from_json, to_json, unusable
from holdfast.core.declared import DeclaredParameter, declared_parameters
from holdfast.core.task import OUTCOMES
from holdfast.errors import BadArguments, BadOption, BadResult

_UNSET = msgspec.UNSET
_PATH = re.compile(r" - at `(?:key` in `)?\$\.?([^`]*)`")


class ArgumentCodec:
    """Turns the calls of one function into JSON bytes and back into typed arguments."""

    def __init__(self, function: Callable[..., Any], name: str, max_bytes: int = json_payload.MAX_BYTES) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self._what = f"{name}()"
        self._signature, annotations = _read(function)
        self._hints = _hints(function, annotations)
        self._unresolved = {name: _written(each) for name, each in annotations.items() if name not in self._hints}
        self._parameters = tuple(self._signature.parameters.values())
        self._is_plain = all(map(_is_plain, self._parameters))
        self._has_defaults = any(each.default is not Parameter.empty for each in self._parameters)
        self._refuse_unusable()
        self._struct = self._make_struct()
        self._decode: Callable[[bytes], msgspec.Struct] = decoder(self._struct)
        #: Reads arguments that are stored in another form than this one; None for those that it does not know.
        self.other_form: Callable[[bytes], tuple[tuple[Any, ...], dict[str, Any]] | None] = _no_other_form
        returned = _without_outcomes(self._hints.get("return", Any))
        #: Whether nothing says what it returns, so that a set arrives as a list; a worker warns once, and clears it.
        self.may_change_results = returned is Any
        self.decode_result = result_decoder(Any if unusable(returned) else returned, self._what)

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
        if _may_hide_non_finite(data):
            _refuse_non_finite(bound, self._what)
        try:
            decoded = self._decode(data)
        except msgspec.ValidationError as error:
            raise BadArguments(f"{self._what}: {_readable(error)}") from None
        if decoded != bound:
            self._refuse_changed(bound, decoded)
        return data

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as the function takes them: `function(*args, **kwargs)`."""
        try:
            bound = self._decode(payload)
        except msgspec.MsgspecError as error:
            found = self.other_form(payload)
            if found is not None:
                return found
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

    def declared(self) -> tuple[tuple[DeclaredParameter, ...], dict[str, dict[str, Any]]]:
        """The parameters, as a worker publishes them, and the definitions that their schemas refer to."""
        return declared_parameters(
            [
                (_key(each), each.default is Parameter.empty and each.kind not in _VARIADIC, hint)
                for each in self._parameters
                for hint in (self._hints.get(each.name, Any),)
            ]
        )

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

    def _make_struct(self) -> type[msgspec.Struct]:
        fields = [self._field(position, each) for position, each in enumerate(self._parameters)]
        return msgspec.defstruct(
            "Arguments",
            fields,
            rename={field[0]: _key(each) for field, each in zip(fields, self._parameters, strict=True)},
            kw_only=not self._is_plain,
            forbid_unknown_fields=True,
            gc=False,
        )

    def _field(self, position: int, each: Parameter) -> tuple[str, Any, Any]:
        name = each.name if self._is_plain else f"parameter_{position}"
        needed = each.default is Parameter.empty and each.kind not in _VARIADIC
        return name, self._annotation(each), msgspec.NODEFAULT if needed else _UNSET

    def _annotation(self, each: Parameter) -> Any:
        annotation: Any = self._hints.get(each.name, Any)
        if each.kind is Parameter.VAR_POSITIONAL:
            return tuple.__class_getitem__((annotation, ...))
        return dict.__class_getitem__((str, annotation)) if each.kind is Parameter.VAR_KEYWORD else annotation

    def _refuse_unusable(self) -> None:
        for each in self._parameters:
            if problem := unusable(self._hints.get(each.name, Any)):
                raise BadArguments(f"{self._what}: the annotation of {each.name} cannot be used: {problem}; {_USABLE}")
        if problem := unusable(_without_outcomes(self._hints.get("return", Any)), reading=False):
            raise BadArguments(f"{self._what}: the return annotation cannot be used: {problem}; {_USABLE}")

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

    def _refuse_changed(self, bound: msgspec.Struct, decoded: msgspec.Struct) -> None:
        """Raises for the first value that would arrive as another one because its annotation does not restore it."""
        values = zip(self._parameters, msgspec.structs.astuple(bound), msgspec.structs.astuple(decoded), strict=True)
        for each, value, got in values:
            if value is _UNSET or (loss := first_loss(value, got, self._annotation(each), each.name)) is None:
                continue
            changed = f"{loss.path}: {loss.what} would arrive as {loss.arrives_as}"
            advice = self._import_advice(each.name) or loss.advice(each.name)
            raise BadArguments(f"{self._what}: {changed}; {advice}")

    def _import_advice(self, parameter: str) -> str:
        """What to do about an annotation that only type checkers can see; empty if there is none."""
        if parameter not in self._unresolved:
            return ""
        written = self._unresolved[parameter]
        return f"its annotation {written!r} is unknown at run time: import it outside of `if TYPE_CHECKING`"

    def _name_unserialisable(self, bound: msgspec.Struct) -> None:
        """Raises the same error again, for the first argument that cannot be written."""
        for each, value in zip(self._parameters, msgspec.structs.astuple(bound), strict=True):
            if value is not _UNSET:
                json_payload.encode(value, f"{self._what}: {each.name}", self.max_bytes)


_USABLE = (
    "use the types of JSON, dates, UUID, Decimal, Path, enums, dataclasses, attrs classes or Pydantic models, "
    "or leave out the annotation"
)
#: Annotations of functions that give no result.
_NEVER = (typing.NoReturn, typing.Never)
_UNRESOLVED: Final = object()
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


def _no_other_form(_: bytes) -> None:
    return None


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function as types, Any for those that cannot be resolved."""
    return _hints(function, _read(function)[1])


def _hints(function: Callable[..., Any], annotations: dict[str, Any]) -> dict[str, Any]:
    """The annotations as types, without those that cannot be resolved: imported for type checkers only."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError):
        names = getattr(function, "__globals__", {})
        found = {name: _resolved(hint, names) for name, hint in annotations.items()}
        return {name: hint for name, hint in found.items() if hint is not _UNRESOLVED}


def _resolved(hint: Any, names: dict[str, Any]) -> Any:
    def lone() -> None: ...

    lone.__annotations__ = {"hint": hint}
    try:
        return typing.get_type_hints(lone, names, include_extras=True)["hint"]
    except (NameError, AttributeError, TypeError):
        return _UNRESOLVED


def _written(annotation: Any) -> str:
    """An annotation as the code has it."""
    return str(annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", annotation))


def decoder(kind: Any) -> Callable[[bytes], Any]:
    """Reads values of this type from JSON."""
    return msgspec.json.Decoder(kind, dec_hook=from_json).decode


def _without_outcomes(hint: Any) -> Any:
    """A return annotation without the `OUTCOMES`, which are never results."""
    if typing.get_origin(hint) in (Union, UnionType):
        left = tuple(each for each in typing.get_args(hint) if each not in OUTCOMES)
        hint = Union[left] if left else Any  # noqa: UP007
    return Any if hint in OUTCOMES or hint in _NEVER else hint


def return_type(function: Callable[..., Any]) -> Any:
    """What a function is annotated to return; Any if it does not say, or if JSON cannot give it."""
    try:
        _, annotations = _read(function)
    except (TypeError, ValueError):  # some that are written in C do not tell
        return Any
    hint = _without_outcomes(_hints(function, annotations).get("return", Any))
    return Any if unusable(hint) else hint


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call gives something to await: an async function, an object that is called like one, or a task type."""
    if isinstance(function, partial):
        return is_async(function.func)
    if inspect.iscoroutinefunction(function):
        return True
    if isinstance(function, type):
        return False
    return inspect.iscoroutinefunction(type(function).__call__) or getattr(function, "is_async", None) is True


def check_runnable(function: Callable[..., Any], name: str) -> None:
    """Refuses a function whose call does not run it: that of a generator only makes one."""
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    for each in (inner, type(inner).__call__):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise BadOption(
                f"{name}: a generator cannot be a task: calling it runs nothing; return a list, or enqueue a task for "
                "each item"
            )


def unfit_result(value: Any, what: str, error: Exception) -> Exception:
    """Why a result is refused, in words that tell what to change."""
    if inspect.iscoroutine(value):
        value.close()  # or Python complains that it was never awaited
    kind = type(value).__name__
    if isinstance(getattr(value, "task_id", None), str):
        return BadResult(f"{what} returned a {kind}, which is not JSON: return its task_id")
    if inspect.isawaitable(value):
        return BadResult(
            f"{what} returned a {kind}: it is a plain function that calls an async one; declare it with `async def` "
            "and await the call, or run it with asyncio.run()"
        )
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        return BadResult(f"{what} returned a generator, which is not run: return a list")
    return error


def encode_result(value: Any, what: str, max_bytes: int = json_payload.MAX_BYTES) -> bytes:
    """A result as JSON bytes within the limits; `what` names it in the errors."""
    try:
        data = json_payload.encode(value, what, max_bytes)
        if _may_hide_non_finite(data):
            _refuse_non_finite(value, what)
    except BadArguments as error:
        raise BadResult(f"{error}; return JSON values, a dataclass or None") from None
    return data


def result_decoder(hint: Any, what: str) -> Callable[[bytes], Any]:
    """Reads results of this type; `what` names the function in the errors."""
    if problem := unusable(hint):
        raise BadOption(f"{what}: a result cannot be read from JSON as {hint!r}: {problem}")
    decode = decoder(hint)

    def decode_result(data: bytes) -> Any:
        try:
            return decode(data)
        except msgspec.MsgspecError as error:
            raise BadResult(f"{what}: result: {_readable(error)}") from None

    return decode_result


def _readable(error: msgspec.MsgspecError) -> str:
    """The path first: `width: Expected int, got str`, not `Expected int, got str - at $.width`."""
    text = str(error)
    found = _PATH.search(text)
    return f"{found[1]}: {text[: found.start()]}" if found and found[1] else text


def _may_hide_non_finite(data: bytes) -> bool:
    """JSON has no NaN and no infinity: as values they would arrive as None, as keys as text."""
    return b"null" in data or b'nan":' in data or b'inf":' in data


def _refuse_non_finite(value: Any, what: str) -> None:
    for path, number in _numbers(msgspec.to_builtins(value, enc_hook=to_json), ""):
        if not math.isfinite(number):
            raise BadArguments(f"{what}: {path.lstrip('.')}{': ' if path else ''}{number} cannot be written as JSON")


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield path, value
    elif isinstance(value, dict):
        for key, each in value.items():
            if isinstance(key, float):
                yield f"{path}.{key}", key
            yield from _numbers(each, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for position, each in enumerate(value):
            yield from _numbers(each, f"{path}[{position}]")
