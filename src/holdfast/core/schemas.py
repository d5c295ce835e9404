"""JSON schemas of annotations, as workers publish them.

They are made of what msgspec and Pydantic know of an annotation; msgspec's own schemas do not tell dates with a time
from other text. What does not say which values fit (titles, descriptions, defaults) is left out, and so is all that
cannot be checked without the code of the app, such as a validator that runs before the type is checked: there, every
value fits. `core/misfits.py` checks values by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from holdfast.core.conversions import is_pydantic

#: The largest schemas of one task type, in bytes of JSON; above, only names and kinds of JSON are published.
MAX_SCHEMA_BYTES: Final = 8 * 1024
#: Marks the schema of a Pydantic model: below it, `"3"` is read as a number.
LAX: Final = "lax"
REFERENCE: Final = "#/$defs/"

Schema = dict[str, Any]
#: By the names of msgspec's classes.
_PLAIN: Final[Mapping[str, Schema]] = {
    "NoneType": {"type": "null"},
    "BoolType": {"type": "boolean"},
    "BytesType": {"type": "string", "contentEncoding": "base64"},
    "DateTimeType": {"type": "string", "format": "date-time"},
    "DateType": {"type": "string", "format": "date"},
    "TimeType": {"type": "string", "format": "time"},
    "TimeDeltaType": {"type": "string", "format": "duration"},
    "UUIDType": {"type": "string", "format": "uuid"},
    "DecimalType": {"type": "string", "format": "decimal"},
}
_BOUNDED: Final[Mapping[str, str]] = {"IntType": "integer", "FloatType": "number", "StrType": "string"}
_LISTS: Final = frozenset({"ListType", "SetType", "FrozenSetType", "VarTupleType"})
_OBJECTS: Final = frozenset({"DataclassType", "TypedDictType", "StructType"})
#: Names of bounds in msgspec and in schemas; `{}` is Length or Items.
_BOUNDS: Final[Mapping[str, str]] = {
    "ge": "minimum",
    "le": "maximum",
    "gt": "exclusiveMinimum",
    "lt": "exclusiveMaximum",
    "min_length": "min{}",
    "max_length": "max{}",
}


def schemas_of(hints: Sequence[Any]) -> tuple[list[Schema], dict[str, Schema]]:
    """A schema for each annotation, and the definitions that they refer to; `{}` for those that have none."""
    import msgspec.inspect

    writer = _Writer()
    try:
        made = [writer.schema(info) for info in msgspec.inspect.multi_type_info(hints)]
    except Exception:  # noqa: BLE001  (of an annotation, by msgspec or a class of the app: then it goes unchecked)
        return [{} for _ in hints], {}
    return made, dict(sorted(writer.definitions.items()))


class _Writer:
    """Writes schemas of what msgspec knows of annotations, classes with fields as definitions."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}

    def schema(self, info: Any) -> Schema:
        """The schema of one annotation."""
        name = type(info).__name__
        if name in _PLAIN:
            return dict(_PLAIN[name])
        if name in _BOUNDED:
            return {"type": _BOUNDED[name], **_bounds(info, "Length")}
        if name in _OBJECTS:
            return self._object(info)
        return self._other(name, info)

    def _other(self, name: str, info: Any) -> Schema:
        match name:
            case "EnumType":
                made: Schema = {"enum": [each.value for each in info.cls]}
            case "LiteralType":
                made = {"enum": list(info.values)}
            case "UnionType":
                made = {"anyOf": [self.schema(each) for each in info.types]}
            case "CustomType":
                made = self._custom(info.cls)
            case "TupleType":
                kinds = [self.schema(each) for each in info.item_types]
                made = {"type": "array", "prefixItems": kinds, "minItems": len(kinds), "maxItems": len(kinds)}
            case "DictType":
                made = {"type": "object", "additionalProperties": self.schema(info.value_type)}
            case "Metadata":
                made = self.schema(info.type)
            case _ if name in _LISTS:
                made = {"type": "array", "items": self.schema(info.item_type), **_bounds(info, "Items")}
            case _:
                made = {}
        return made

    def _object(self, info: Any) -> Schema:
        if getattr(info, "array_like", False):
            return {}
        name = f"{info.cls.__module__}.{info.cls.__qualname__}"
        if name not in self.definitions:
            made: Schema = {"type": "object"}
            self.definitions[name] = made  # before its fields: they may refer to it
            made["properties"] = {field.encode_name: self.schema(field.type) for field in info.fields}
            made["required"] = [field.encode_name for field in info.fields if field.required]
            if getattr(info, "forbid_unknown_fields", False) and info.tag is None:
                made["additionalProperties"] = False
        return {"$ref": REFERENCE + name}

    def _custom(self, kind: Any) -> Schema:
        if is_pydantic(kind):
            return _model(kind, self.definitions)
        return {"type": "string"} if issubclass(kind, PurePath) else {}


def _bounds(info: Any, what: str) -> Schema:
    found = {name.format(what): getattr(info, attribute, None) for attribute, name in _BOUNDS.items()}
    return {name: bound for name, bound in found.items() if bound is not None}


# -- Pydantic --------------------------------------------------------------------------------------------------


#: Keys with a schema in them, and with several.
_ONE: Final = ("items", "additionalProperties")
_SEVERAL: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_KEPT: Final = frozenset(
    {
        *("type", "enum", "const", "format", "required", "$ref"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("minLength", "maxLength", "minItems", "maxItems"),
    }
)


def _compact(schema: Any) -> Any:
    """A schema of Pydantic's without what does not say which values fit."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key in _KEPT}
    for key in _ONE:
        if key in schema:
            kept[key] = _compact(schema[key])
    for key in _SEVERAL:
        if key in schema:
            kept[key] = [_compact(each) for each in schema[key]]
    if "properties" in schema:
        kept["properties"] = {name: _compact(each) for name, each in schema["properties"].items()}
    return kept


def _model(kind: Any, definitions: dict[str, Schema]) -> Schema:
    """The schema of a model; what it refers to is added under names that begin with its own."""
    prefix = f"{kind.__module__}.{kind.__qualname__}:"
    template = f"{REFERENCE}{prefix}{{model}}"
    made = kind.model_json_schema(ref_template=template, schema_generator=_generator())
    definitions.update({prefix + name: _compact(each) for name, each in made.get("$defs", {}).items()})
    return {**_compact(made), LAX: True}


def _generator() -> type:
    """Pydantic's generator, but that any value fits where code of the app decides."""
    from pydantic import AliasChoices, AliasPath
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        def function_before_schema(self, schema: Any) -> Schema:  # noqa: ARG002
            return {}

        def function_wrap_schema(self, schema: Any) -> Schema:  # noqa: ARG002
            return {}

        def function_plain_schema(self, schema: Any) -> Schema:  # noqa: ARG002
            return {}

        def decimal_schema(self, schema: Any) -> Schema:  # noqa: ARG002
            return {"type": "string", "format": "decimal"}

        def str_schema(self, schema: Any) -> Schema:
            coerced = schema.get("coerce_numbers_to_str") or self._config.coerce_numbers_to_str
            return {} if coerced else super().str_schema(schema)

        def model_schema(self, schema: Any) -> Schema:
            made: Schema = super().model_schema(schema)
            config, fields = schema["cls"].model_config, schema["cls"].model_fields.values()
            by_both = config.get("populate_by_name") or config.get("validate_by_name")
            if by_both or any(isinstance(field.validation_alias, (AliasChoices, AliasPath)) for field in fields):
                made.pop("required", None)
                made.pop("additionalProperties", None)
            return made

    return Generator
