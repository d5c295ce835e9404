"""What a worker publishes of its task types, so that tasks can be enqueued by name without the code of the app.

Each type is one document: its queue, priority and policy, and the parameters of its function with a schema of what fits
them. The command line enqueues with it, and checks arguments by the schemas: the worker checks the rest.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.core.conversions import is_pydantic
from holdfast.core.retry import DEFAULT_POLICY, RunPolicy
from holdfast.errors import BadArguments

#: The largest document of a type, in bytes of JSON; a longer signature is left out, and then arguments go unchecked.
MAX_DECLARED_BYTES: Final = 32 * 1024
#: How many types of an app are published at most, the first ones by name.
MAX_DECLARED_TYPES: Final = 1_000
#: How long a type stays published after its last worker has published it.
DECLARED_TTL_MS: Final = 86_400_000


class DeclaredParameter(msgspec.Struct, frozen=True, omit_defaults=True):
    """One parameter; its name has the stars of `*args` and `**kwargs`, as the arguments of a task have them."""

    name: str
    required: bool = False
    #: The kinds of JSON that fit: string, integer, number, boolean, null, array, object; empty for any.
    kinds: tuple[str, ...] = ()
    #: What fits, as far as it can be said without the code of the app; None: only the kinds are known.
    schema: dict[str, Any] | None = None

    def fits(self, value: Any) -> bool:
        """Whether the value is of a kind that fits."""
        kind = json_kind(value)
        return not self.kinds or kind in self.kinds or (kind == "integer" and "number" in self.kinds)


class DeclaredType(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task type as its app declares it."""

    name: str
    queue: str
    priority: int = 0
    policy: RunPolicy = DEFAULT_POLICY
    #: Whether the app signs or encrypts the arguments: a task made without its keys would be refused.
    protected: bool = False
    #: None: too many to publish.
    parameters: tuple[DeclaredParameter, ...] | None = None
    #: What the schemas of the parameters refer to.
    definitions: dict[str, dict[str, Any]] = {}

    def without_schemas(self) -> DeclaredType:
        """The same with names and kinds of JSON only."""
        parameters = None if self.parameters is None else tuple(replace(each, schema=None) for each in self.parameters)
        return replace(self, parameters=parameters, definitions={})

    def arguments(self, given: dict[str, Any] | list[Any]) -> Any:
        """The arguments as a task carries them, from an object by name or a list by position; checked."""
        if self.parameters is None:
            if isinstance(given, list):
                raise BadArguments(f"{self.name}(): write the arguments by name: its signature is not published")
            return given
        arranged = dict(self._by_position(given) if isinstance(given, list) else self._by_name(given))
        for each in self.parameters:
            if each.required and each.name not in arranged:
                raise self._refused(f"missing argument '{each.name}'")
        return arranged

    def _by_name(self, given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        known, more = {each.name: each for each in self._named()}, {}
        others = self._rest("**")
        for name, value in given.items():
            if name in known:
                yield name, self._checked(known[name], value)
            elif others is None:
                raise self._refused(f"unknown argument '{name}'")
            else:
                more[name] = self._checked(others, value)
        if others is not None and more:
            yield others.name, more

    def _by_position(self, given: list[Any]) -> Iterator[tuple[str, Any]]:
        named, others = self._named(), self._rest("*")
        for each, value in zip(named, given, strict=False):
            yield each.name, self._checked(each, value)
        more = given[len(named) :]
        if more and others is None:
            raise self._refused(f"too many arguments by position ({len(given)})")
        if more and others is not None:
            yield others.name, [self._checked(others, value) for value in more]

    def _named(self) -> list[DeclaredParameter]:
        return [each for each in self.parameters or () if not each.name.startswith("*")]

    def _rest(self, stars: str) -> DeclaredParameter | None:
        found = (each for each in self.parameters or () if each.name == stars + each.name.lstrip("*"))
        return next(found, None)

    def _checked(self, each: DeclaredParameter, value: Any) -> Any:
        if each.schema is not None:
            from holdfast.core.misfits import Checker

            problem = Checker(self.definitions).misfit(value, each.schema, each.name)
            if problem is not None:
                raise self._refused(problem)
        elif not each.fits(value):
            raise self._refused(f"{each.name}: expected {' or '.join(each.kinds)}, got {json_kind(value)}")
        return value

    def _refused(self, problem: str) -> BadArguments:
        names = [
            each.name if each.required or each.name[0] == "*" else f"[{each.name}]" for each in self.parameters or ()
        ]
        return BadArguments(f"{self.name}(): {problem}; it takes {', '.join(names) or 'no arguments'}")


def json_kind(value: Any) -> str:
    """Which kind of JSON a value is."""
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def declared_parameters(
    parameters: Sequence[tuple[str, bool, Any]],
) -> tuple[tuple[DeclaredParameter, ...], dict[str, dict[str, Any]]]:
    """What is published of parameters, each by its name, whether it is required, and its annotation."""
    from holdfast.core.schemas import MAX_SCHEMA_BYTES, schemas_of

    schemas, definitions = schemas_of([hint for _, _, hint in parameters])
    made = tuple(
        DeclaredParameter(name, required, json_kinds(hint), schema)
        for (name, required, hint), schema in zip(parameters, schemas, strict=True)
    )
    if len(msgspec.json.encode((schemas, definitions))) > MAX_SCHEMA_BYTES:
        return tuple(replace(each, schema=None) for each in made), {}
    return made, definitions


# -- from annotations ------------------------------------------------------------------------------------------


def json_kinds(hint: Any) -> tuple[str, ...]:
    """The kinds of JSON that can be read as this annotation; empty for any."""
    import msgspec.inspect

    kinds = sorted(set(_kinds(msgspec.inspect.type_info(hint))))
    return () if "" in kinds else tuple(kinds)


def _kinds(info: Any) -> Iterator[str]:
    if isinstance(info, msgspec.inspect.UnionType):
        for each in info.types:
            yield from _kinds(each)
    elif isinstance(info, msgspec.inspect.EnumType):
        yield from (json_kind(_plain(member.value)) for member in info.cls)
    elif isinstance(info, msgspec.inspect.LiteralType):
        yield from map(json_kind, info.values)
    elif isinstance(info, msgspec.inspect.CustomType):
        yield _model_kind(info.cls) if is_pydantic(info.cls) else "string" if issubclass(info.cls, PurePath) else ""
    else:
        yield _KINDS.get(type(info).__name__, "")


def _model_kind(model: Any) -> str:
    validators = model.__pydantic_decorators__.model_validators.values()
    takes_others = model.__pydantic_root_model__ or any(each.info.mode != "after" for each in validators)
    return "" if takes_others else "object"


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


#: By the names of msgspec's classes; what is not here may be of more than one kind.
_KINDS: Final = {
    "BoolType": "boolean",
    "NoneType": "null",
    "IntType": "integer",
    "FloatType": "number",
    "StrType": "string",
    "BytesType": "string",
    "DateTimeType": "string",
    "DateType": "string",
    "TimeType": "string",
    "UUIDType": "string",
    "ListType": "array",
    "SetType": "array",
    "FrozenSetType": "array",
    "TupleType": "array",
    "VarTupleType": "array",
    "DictType": "object",
    "TypedDictType": "object",
    "DataclassType": "object",
}
