"""Published schemas: what does not fit is named in one line, and nothing is refused that the worker would take."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import pathlib
import uuid
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import attrs
import msgspec
import pydantic
import pytest

from holdfast.core.arguments import decoder
from holdfast.core.declared import MAX_DECLARED_BYTES, DeclaredType, declared_parameters, json_kinds
from holdfast.core.misfits import Checker
from holdfast.core.schemas import MAX_SCHEMA_BYTES, schemas_of
from holdfast.errors import BadArguments


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Item:
    name: str
    price: decimal.Decimal
    size: Size = Size.SMALL
    parts: list[Item] = dataclasses.field(default_factory=list)


@attrs.define
class Address:
    city: str
    since: dt.date | None = None


class Line(pydantic.BaseModel):
    count: Annotated[int, pydantic.Field(ge=1)]
    price: decimal.Decimal = decimal.Decimal(1)
    due: dt.date | None = None
    level: Level = Level.LOW
    below: list[Line] = []


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    number: int
    title: str = ""
    lines: list[Line] = []
    kind: Literal["new", "old"] = "new"
    paid: bool = False
    key: uuid.UUID | None = None


class Loose(pydantic.BaseModel):
    """Its validators take more than its annotations say."""

    tags: list[str] = []
    name: str = pydantic.Field(default="", validation_alias=pydantic.AliasChoices("n", "name"))

    @pydantic.field_validator("tags", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return value.split(",") if isinstance(value, str) else value


class Whole(pydantic.BaseModel):
    x: int

    @pydantic.model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"x": int(value)} if isinstance(value, str) else value


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    when: int = pydantic.Field(alias="at")


def misfit(hint: Any, value: Any) -> str | None:
    (schema,), definitions = schemas_of([hint])
    return Checker(definitions).misfit(value, schema, "it")


WRONG: list[tuple[Any, Any, str]] = [
    (Size, "m", 'it: expected "s" or "l", got "m"'),
    (Level, 3, "it: expected 1 or 2, got 3"),
    (Literal["new", "old"], "odl", 'it: expected "new" or "old", got "odl"'),
    (dt.date, "tomorrow", 'it: expected a date, such as 2030-01-31, got "tomorrow"'),
    (dt.datetime, "2030-01-31", 'it: expected a date with time, such as 2030-01-31T09:00:00Z, got "2030-01-31"'),
    (dt.time, 9, "it: expected a time, such as 09:00:00, got 9"),
    (dt.timedelta, "30s", 'it: expected an ISO 8601 duration, such as PT30S, got "30s"'),
    (uuid.UUID, "7", 'it: expected a UUID, got "7"'),
    (decimal.Decimal, "much", 'it: expected a decimal number, such as 12.50, got "much"'),
    (bytes, "!", 'it: expected base64 text, got "!"'),
    (pathlib.Path, 3, "it: expected string, got 3"),
    (int | None, "4", 'it: expected integer or null, got "4"'),
    (list[int], [1, 2, "x"], 'it[2]: expected integer, got "x"'),
    (tuple[int, str], [1], "it: expected at least 2 items, got array"),
    (dict[str, int], {"a": None}, "it.a: expected integer, got null"),
    (set[Size], ["s", "x"], 'it[1]: expected "s" or "l", got "x"'),
    (Annotated[int, msgspec.Meta(ge=3)], 2, "it: expected at least 3, got 2"),
    (Annotated[str, msgspec.Meta(max_length=2)], "abc", 'it: expected at most 2 characters, got "abc"'),
    (Item, {"name": "a"}, "it: the field 'price' is missing"),
    (Item, {"name": "a", "price": 1, "size": "x"}, 'it.size: expected "s" or "l", got "x"'),
    (
        list[Item],
        [{"name": "a", "price": 1, "parts": [{"name": 1, "price": 1}]}],
        "it[0].parts[0].name: expected string, got 1",
    ),
    (Item | None, {"name": 3, "price": 1}, "it.name: expected string, got 3"),
    (Address, {"city": "Köln", "since": "then"}, 'it.since: expected a date, such as 2030-01-31 or null, got "then"'),
    (Order, {"title": "x"}, "it: the field 'number' is missing"),
    (Order, "x", 'it: expected object, got "x"'),
    (Order, {"number": "many"}, 'it.number: expected integer, got "many"'),
    (Order, {"number": 1, "titel": "x"}, "it: unknown field 'titel'; it has number, title, lines, kind, paid, key"),
    (Order, {"number": 1, "kind": "odl"}, 'it.kind: expected "new" or "old", got "odl"'),
    (Order, {"number": 1, "paid": "perhaps"}, 'it.paid: expected boolean, got "perhaps"'),
    (Order, {"number": 1, "lines": [{"count": 0}]}, "it.lines[0].count: expected at least 1, got 0"),
    (Order, {"number": 1, "lines": [{"count": 1, "level": 3}]}, "it.lines[0].level: expected 1 or 2, got 3"),
    (list[Line], [{"count": 1, "below": [{}]}], "it[0].below[0]: the field 'count' is missing"),
]


@pytest.mark.parametrize(("hint", "value", "problem"), WRONG)
def test_what_does_not_fit_is_named_and_so_is_what_would(hint: Any, value: Any, problem: str) -> None:
    assert misfit(hint, value) == problem
    with pytest.raises(msgspec.ValidationError):  # and the worker would refuse it too
        decoder(hint)(msgspec.json.encode(value))


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Any, object),
        (float, 3),
        (Size | None, None),
        (dt.datetime, "2030-01-31T09:00:00+01:00"),
        (decimal.Decimal, 1.5),
        (decimal.Decimal, "1.50"),
        (uuid.UUID, "12345678123456781234567812345678"),
        (bytes, "aGk="),
        (dict[int, str], {"1": "x"}),
        (Iterable, [1]),
        (Item, {"name": "a", "price": "1.5", "more": 1}),
        (Order, {"number": "7", "paid": "yes", "key": "{12345678-1234-5678-1234-567812345678}"}),
        (Order, {"number": 7.0, "paid": 1}),
        (Line, {"count": 1, "due": 86400, "price": 2.5}),
        (Line, {"count": True, "due": "2030-01-31T00:00:00"}),
        (Line, {"count": "3", "level": "2"}),
        (Loose, {"tags": "a,b", "name": "x"}),
        (Loose, {"n": "x"}),
        (Whole, "3"),
        (Numbers, [1, "2"]),
        (Aliased, {"when": 1}),
        (Aliased, {"at": 1}),
    ],
)
def test_what_the_worker_takes_is_not_refused(hint: Any, value: Any) -> None:
    if value is not object:
        decoder(hint)(msgspec.json.encode(value))
        assert misfit(hint, value) is None
        kinds = json_kinds(hint)
        (parameter,), _ = declared_parameters([("it", True, hint)])
        assert not kinds or parameter.fits(value)


def test_a_definition_that_refers_to_itself_ends() -> None:
    loop = {"a": {"$ref": "#/$defs/a"}}
    assert Checker(loop).misfit(1, loop["a"], "it") is None


def test_what_is_not_understood_fits() -> None:
    assert Checker({}).misfit(1, {"$ref": "#/$defs/nowhere"}, "it") is None
    assert Checker({}).misfit("x", {"type": "string", "format": "colour"}, "it") is None


def test_titles_and_descriptions_are_not_published_and_fields_of_these_names_are() -> None:
    class Page(pydantic.BaseModel):
        title: str = pydantic.Field(description="A secret of the house.")

    text = msgspec.json.encode(schemas_of([Page])).decode()
    assert "secret" not in text
    assert '"title":{"type":"string"}' in text


def test_schemas_are_bounded_and_then_the_kinds_are_left() -> None:
    wide = enum.Enum("wide", {f"X{number}": "x" * 100 + str(number) for number in range(200)})  # type: ignore[misc]
    (parameter,), definitions = declared_parameters([("size", True, wide)])
    assert (parameter.schema, definitions, parameter.kinds) == (None, {}, ("string",))
    declared = DeclaredType(name="t", queue="q", parameters=(parameter,))
    with pytest.raises(BadArguments, match="size: expected string, got integer"):
        declared.arguments({"size": 1})
    assert MAX_SCHEMA_BYTES < MAX_DECLARED_BYTES


def test_the_same_annotations_are_published_the_same_way_each_time() -> None:
    hints = [Order, list[Item], Literal["b", "a"], Address | None]
    assert msgspec.json.encode(schemas_of(hints)) == msgspec.json.encode(schemas_of(hints))
