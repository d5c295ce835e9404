"""What a worker publishes of its types: kinds of JSON, and arguments that are checked by them."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import pathlib
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pydantic
import pytest

from holdfast import Holdfast, Retry
from holdfast.core.arguments import ArgumentCodec
from holdfast.core.declared import DECLARED_TTL_MS, MAX_DECLARED_BYTES, DeclaredType, json_kinds
from holdfast.errors import BadArguments
from holdfast.stores import documents
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock

WHEN = "2030-01-01T00:00:00Z"


class Colour(enum.Enum):
    RED = "red"


class Mail(pydantic.BaseModel):
    to: str


def every(
    url: str, width: int = 800, ratio: float | None = None, *more: int, when: dt.datetime, **others: list[str]
) -> None: ...


def declared(function: Callable[..., Any]) -> DeclaredType:
    parameters, definitions = ArgumentCodec(function, function.__name__).declared()
    return DeclaredType(name=function.__name__, queue="default", parameters=parameters, definitions=definitions)


@pytest.mark.parametrize(
    ("hint", "kinds"),
    [
        (Any, ()),
        (int, ("integer",)),
        (float | None, ("null", "number")),
        (bytes | None, ("null", "string")),
        (list[Mail], ("array",)),
        (dict[str, int], ("object",)),
        (Mail, ("object",)),
        (pathlib.Path, ("string",)),
        (Colour, ("string",)),
        (Literal["a", 1], ("integer", "string")),
        (object, ()),
        (str | Any, ()),
    ],
)
def test_an_annotation_takes_these_kinds_of_json(hint: Any, kinds: tuple[str, ...]) -> None:
    assert json_kinds(hint) == kinds


@pytest.mark.parametrize(
    ("given", "carried"),
    [
        ({"url": "a", "when": WHEN}, {"url": "a", "when": WHEN}),
        ({"url": "a", "when": WHEN, "ratio": 1}, {"url": "a", "when": WHEN, "ratio": 1}),
        ({"url": "a", "when": WHEN, "x": []}, {"url": "a", "when": WHEN, "**others": {"x": []}}),
    ],
)
def test_arguments_are_arranged_as_a_task_carries_them(given: Any, carried: Any) -> None:
    assert declared(every).arguments(given) == carried
    ArgumentCodec(every, "every").decode(msgspec.json.encode(carried))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"when": WHEN}, "missing argument 'url'"),
        ({"url": "a", "when": WHEN, "x": 1}, "**others: expected array, got 1"),
        ({"url": "a", "when": WHEN, "width": 1.5}, "width: expected integer, got 1.5"),
        ({"url": "a", "when": "t"}, 'when: expected a date with time, such as 2030-01-31T09:00:00Z, got "t"'),
        (["a", 1, 2.5], "missing argument 'when'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(given: Any, problem: str) -> None:
    with pytest.raises(BadArguments) as caught:
        declared(every).arguments(given)
    takes = "url, [width], [ratio], *more, when, **others"
    assert str(caught.value) == f"every(): {problem}; it takes {takes}"


def test_a_type_without_a_published_signature_takes_any_object() -> None:
    bare = DeclaredType(name="t", queue="q")
    assert bare.arguments({"x": 1}) == {"x": 1}
    with pytest.raises(BadArguments, match="write the arguments by name"):
        bare.arguments([1])


def test_what_is_published_of_a_type_is_bounded() -> None:
    parameters = ", ".join(f"p{number}_{'x' * 100}: int" for number in range(1_000))
    names: dict[str, Any] = {}
    exec(f"def wide({parameters}) -> None: ...", names)
    give_up_on = tuple(f"shop.{'E' * 180}{number}" for number in range(100))
    with Holdfast("sqlite://") as app:
        wide = app.task(name="wide")(names["wide"]).declared()
        assert wide is not None
        assert wide.parameters is None
        assert len(msgspec.json.encode(wide)) <= MAX_DECLARED_BYTES
        policy = Retry(give_up_on=give_up_on, retry_on=give_up_on)
        assert app.task(name="wider", retry=policy)(names["wide"]).declared() is None


def test_types_are_written_when_they_change_and_before_they_expire() -> None:
    clock = SteppedClock()
    types = [DeclaredType(name=f"t{number}", queue="q") for number in range(3)]

    async def run() -> list[int]:
        store = open_store("sqlite://", clock=clock)
        written = [await documents.publish_types(store, types), await documents.publish_types(store, types)]
        types[1] = DeclaredType(name="t1", queue="other")
        written.append(await documents.publish_types(store, types))
        clock.advance(DECLARED_TTL_MS // 2)
        written.append(await documents.publish_types(store, types))
        found = await documents.declared_type(store, "t1")
        clock.advance(DECLARED_TTL_MS)
        gone = await documents.declared_type(store, "t1")
        await store.close()
        assert (found, gone) == (types[1], None)
        return written

    assert asyncio.run(run()) == [3, 0, 1, 3]
