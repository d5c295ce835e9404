"""Arguments survive the way to JSON and back, and wrong ones are refused in one line."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import inspect
import pathlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Cancel, Snooze
from holdfast.core.arguments import ArgumentCodec
from holdfast.errors import BadArguments, BadResult, HoldfastError, PayloadTooDeep, PayloadTooLarge

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Circle(msgspec.Struct):
    centre: Point
    radius: float


class Email(pydantic.BaseModel):
    to: str = pydantic.Field(alias="To")
    sent: dt.datetime | None = None
    parts: set[int] = set()

    @pydantic.computed_field
    def length(self) -> int:
        return len(self.to)


class Urgent(Email):
    level: int = 1


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


@attrs.define
class Place:
    name: str
    folder: pathlib.Path = pathlib.Path("/tmp")


@dataclasses.dataclass
class Upload:
    file: pathlib.Path
    colour: Colour
    extra: Any = None


class Level(enum.IntEnum):
    LOW = 1


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Rank(enum.Enum):
    HIGH = 3


def resize(url: str, width: int = 800) -> str:
    return f"{url}@{width}"


def no_defaults(url: str, width: int) -> None: ...
def nothing() -> None: ...
def untyped(a, b=1): ...  # type: ignore[no-untyped-def]
def keyword_only(a: int, *, b: int, c: str = "c") -> None: ...
def positional_only(a: int, b: int = 2, /, c: int = 3) -> None: ...
def rest(a: int, b: int = 2, *rest: float, key: str = "k", **more: Point) -> None: ...
def same_names(a: int, /, *args: int, **kwargs: int) -> None: ...
def mangled(__hidden: int, shown: int = 0) -> None: ...  # noqa: PYI063
def rich(
    circle: Circle,
    when: dt.datetime,
    day: dt.date,
    span: dt.timedelta,
    colour: Colour,
    mode: Literal["fast", "slow"],
    maybe: int | None,
    points: list[Point],
    by_name: dict[str, Point],
    raw: bytes,
    price: Decimal,
    key: uuid.UUID,
    pair: tuple[int, str],
    tags: set[str],
    numbers: Sequence[int],
    table: Mapping[str, float],
) -> None: ...
def models(
    mail: Email, maybe: Email | None, many: list[Email], by_name: dict[str, Email], path: pathlib.Path, place: Place
) -> Email:
    return mail


def uploaded(upload: Upload, folders: dict[str, pathlib.PurePosixPath]) -> Upload:
    return upload


def loose(ids: Iterable[int], anything: object, table: dict[str, object]) -> None: ...
def as_lists(numbers: list[int], names: Sequence[str]) -> None: ...
def any_items(items: list[Any], upload: Upload | None = None, unique: set[Any] | None = None) -> None: ...
def login(user: Login) -> None: ...
def limited(count: Annotated[int, msgspec.Meta(ge=1)]) -> None: ...
def unresolved(missing: Missing, number: int) -> None: ...
def anything(value: Any) -> None: ...
def outcomes(value: int) -> int | Snooze | Cancel:
    return value


def makes_points() -> list[Point]:
    return []


RICH: dict[str, Any] = {
    "circle": Circle(Point(1, 2), 2.5),
    "when": dt.datetime(2030, 1, 2, 3, 4, 5, 678000, tzinfo=dt.UTC),
    "day": dt.date(2030, 1, 2),
    "span": dt.timedelta(hours=2),
    "colour": Colour.BLUE,
    "mode": "slow",
    "maybe": None,
    "points": [Point(1), Point(2, 3)],
    "by_name": {"a": Point(4)},
    "raw": b"\x00\xff",
    "price": Decimal("9.99"),
    "key": uuid.UUID(int=7),
    "pair": (1, "one"),
    "tags": {"x", "y"},
    "numbers": [1, 2],
    "table": {"pi": 3.14},
}


MAIL = Email(To="ann", sent=dt.datetime(2030, 1, 2, tzinfo=dt.UTC), parts={1, 2})
UPLOAD = Upload(pathlib.Path("/srv/cat.jpg"), Colour.RED)
MODELS: dict[str, Any] = {
    "mail": MAIL,
    "maybe": None,
    "many": [MAIL],
    "by_name": {"a": MAIL},
    "path": pathlib.Path("a/b.txt"),
    "place": Place("home"),
}


def codec(function: Callable[..., Any]) -> ArgumentCodec:
    return ArgumentCodec(function, function.__name__)


def received(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments by name, as the function gets them after a round trip."""
    here = codec(function)
    decoded_args, decoded_kwargs = here.decode(here.encode(args, kwargs))
    return dict(inspect.signature(function).bind(*decoded_args, **decoded_kwargs).arguments)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "expected"),
    [
        (resize, ("cat.jpg",), {}, {"url": "cat.jpg"}),
        (resize, ("cat.jpg", 400), {}, {"url": "cat.jpg", "width": 400}),
        (resize, (), {"width": 400, "url": "cat.jpg"}, {"url": "cat.jpg", "width": 400}),
        (no_defaults, ("cat.jpg",), {"width": 3}, {"url": "cat.jpg", "width": 3}),
        (nothing, (), {}, {}),
        (untyped, ({"x": [1, None]},), {"b": "two"}, {"a": {"x": [1, None]}, "b": "two"}),
        (keyword_only, (1,), {"b": 2}, {"a": 1, "b": 2}),
        (keyword_only, (), {"c": "z", "b": 2, "a": 1}, {"a": 1, "b": 2, "c": "z"}),
        (positional_only, (1,), {}, {"a": 1}),
        (positional_only, (1,), {"c": 5}, {"a": 1, "c": 5}),
        (positional_only, (1, 4, 5), {}, {"a": 1, "b": 4, "c": 5}),
        (rest, (1,), {}, {"a": 1}),
        (rest, (1,), {"key": "z"}, {"a": 1, "key": "z"}),
        (rest, (1, 2, 3, 4.5), {"p": Point(1)}, {"a": 1, "b": 2, "rest": (3.0, 4.5), "more": {"p": Point(1)}}),
        (same_names, (1, 2), {"a": 3, "args": 4}, {"a": 1, "args": (2,), "kwargs": {"a": 3, "args": 4}}),
        (mangled, (1,), {"shown": 2}, {"__hidden": 1, "shown": 2}),
        (rich, (), RICH, RICH),
        (models, (), MODELS, MODELS),
        (
            uploaded,
            (UPLOAD, {"a": pathlib.PurePosixPath("b")}),
            {},
            {"upload": UPLOAD, "folders": {"a": pathlib.PurePosixPath("b")}},
        ),
        (loose, ([1], {"a": [None]}, {"b": 1.5}), {}, {"ids": [1], "anything": {"a": [None]}, "table": {"b": 1.5}}),
        (as_lists, ((1, 2), ("a",)), {}, {"numbers": [1, 2], "names": ["a"]}),
        (anything, (Level.LOW,), {}, {"value": 1}),
        (anything, (collections.OrderedDict(a=1),), {}, {"value": {"a": 1}}),
        (limited, (1,), {}, {"count": 1}),
        (unresolved, ({"any": "thing"}, 3), {}, {"missing": {"any": "thing"}, "number": 3}),
    ],
)
def test_a_function_receives_what_was_given(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert received(function, *args, **kwargs) == expected


def test_the_payload_is_a_json_object_of_the_given_arguments_in_the_order_of_the_signature() -> None:
    assert codec(resize).encode((), {"width": 400, "url": "cat.jpg"}) == b'{"url":"cat.jpg","width":400}'
    assert codec(resize).encode(("cat.jpg",), {}) == b'{"url":"cat.jpg"}'
    assert (
        codec(rest).encode((1, 2, 3.5), {"p": Point(1)}) == b'{"a":1,"b":2,"*rest":[3.5],"**more":{"p":{"x":1,"y":0}}}'
    )


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_any_json_value_comes_back_as_it_was(value: Any) -> None:
    assert received(anything, value) == {"value": value}


@given(st.builds(Circle, st.builds(Point, st.integers(0, 9), st.integers(0, 9)), st.floats(-1e9, 1e9)), st.text())
def test_typed_values_come_back_as_their_types(circle: Circle, name: str) -> None:
    def draw(circle: Circle, *names: str) -> None: ...

    assert received(draw, circle, name) == {"circle": circle, "names": (name,)}


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "text"),
    [
        (resize, (), {}, "resize(): missing argument 'url'; it takes url, width=800"),
        (resize, ("a",), {"wdith": 4}, "resize(): unknown argument 'wdith'; it takes url, width=800"),
        (resize, ("a", 4, 5), {}, "resize(): too many arguments by position (3); it takes url, width=800"),
        (resize, ("a",), {"url": "b"}, "resize(): argument 'url' is given twice; it takes url, width=800"),
        (resize, ("a",), {"width": "4"}, "resize(): width: Expected `int`, got `str`"),
        (resize, ("a",), {"width": True}, "resize(): width: Expected `int`, got `bool`"),
        (resize, (None,), {}, "resize(): url: Expected `str`, got `null`"),
        (
            resize,
            (object(),),
            {},
            "resize(): url: cannot be written as JSON: Encoding objects of type object is unsupported",
        ),
        (nothing, (1,), {}, "nothing(): too many arguments by position (1); it takes no arguments"),
        (keyword_only, (1, 2), {"b": 2}, "keyword_only(): too many arguments by position (2); it takes a, b, c='c'"),
        (keyword_only, (1,), {}, "keyword_only(): missing argument 'b'; it takes a, b, c='c'"),
        (positional_only, (), {"a": 1}, "positional_only(): unknown argument 'a'; it takes a, b=2, c=3"),
        (rest, (1, 2, "x"), {}, "rest(): *rest[0]: Expected `float`, got `str`"),
        (rest, (1,), {"p": Point("x")}, "rest(): **more[...].x: Expected `int`, got `str`"),  # type: ignore[arg-type]
        (limited, (0,), {}, "limited(): count: Expected `int` >= 1"),
        (anything, (float("nan"),), {}, "anything(): value: nan cannot be written as JSON"),
        (anything, ({float("inf"): 1},), {}, "anything(): value.inf: inf cannot be written as JSON"),
        (anything, ({"a": [1.0, float("-inf")]},), {}, "anything(): value.a[1]: -inf cannot be written as JSON"),
        (anything, ({(1, 2): 3},), {}, "anything(): value: cannot be written as JSON: "),
        (anything, ("\ud800",), {}, "anything(): value: cannot be written as JSON: "),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], text: str
) -> None:
    with pytest.raises(BadArguments) as caught:
        codec(function).encode(args, kwargs)
    message = str(caught.value)
    assert message.startswith(text) if text.endswith(": ") else message == text
    assert "\n" not in message


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"abc", "value: bytes would arrive as str; declare it as `value: bytes`, or pass a str"),
        ({1}, "value: set would arrive as list; declare it as `value: set`, or pass a list"),
        ((1, 2), "value: tuple would arrive as list; declare it as `value: tuple`, or pass a list"),
        ({1: 2}, "value: the key 1 would arrive as str; declare `value` with the types inside it, or pass a str"),
        (
            dt.datetime(2030, 1, 2, tzinfo=dt.UTC),
            "value: datetime would arrive as str; declare it as `value: datetime`, or pass a str",
        ),
        (dt.timedelta(1), "value: timedelta would arrive as str; declare it as `value: timedelta`, or pass a str"),
        (uuid.UUID(int=7), "value: UUID would arrive as str; declare it as `value: UUID`, or pass a str"),
        (Decimal("1.5"), "value: Decimal would arrive as str; declare it as `value: Decimal`, or pass a str"),
        (pathlib.Path("x"), "value: Path would arrive as str; declare it as `value: Path`, or pass a str"),
        (
            pathlib.PurePosixPath("x"),
            "value: PurePath would arrive as str; declare it as `value: PurePath`, or pass a str",
        ),
        (Rank.HIGH, "value: Rank would arrive as int; declare it as `value: Rank`, or pass an int"),
        (Colour.RED, "value: Colour would arrive as str; declare it as `value: Colour`, or pass a str"),
        (Point(1), "value: Point would arrive as dict; declare it as `value: Point`, or pass a dict"),
        (MAIL, "value: Email would arrive as dict; declare it as `value: Email`, or pass a dict"),
        (
            {"a": [b"x"]},
            "value.a[0]: bytes would arrive as str; declare `value` with the types inside it, or pass a str",
        ),
    ],
)
def test_a_value_that_json_would_change_is_refused_with_the_fix(value: Any, text: str) -> None:
    with pytest.raises(BadArguments) as caught:
        codec(anything).encode((value,), {})
    assert str(caught.value) == f"anything(): {text}"


def test_an_annotation_that_only_type_checkers_see_is_named_with_the_fix() -> None:
    """It cannot be told to do what has been done: to declare `missing: Missing`."""
    with pytest.raises(BadArguments) as caught:
        codec(unresolved).encode((MAIL, 1), {})
    assert str(caught.value) == (
        "unresolved(): missing: Email would arrive as dict; "
        "its annotation 'Missing' is unknown at run time: import it outside of `if TYPE_CHECKING`"
    )
    with pytest.raises(BadArguments, match="number: Expected `int`, got `str`"):
        codec(unresolved).encode(({}, "x"), {})


@pytest.mark.parametrize(
    ("function", "args", "text"),
    [
        (any_items, ([(1,)],), "any_items(): items[0]: tuple would arrive as list; "),
        (any_items, ([], Upload(pathlib.Path("x"), Colour.RED, b"x")), "any_items(): upload.extra: bytes would arrive"),
        (any_items, ([], None, {b"x"}), "any_items(): unique: bytes would arrive as str; "),
        (
            login,
            (Login(password=pydantic.SecretStr("x")),),
            "login(): user.password: SecretStr would arrive as another value",
        ),
        (
            models,
            (Urgent(To="a"), None, [], {}, pathlib.Path("x"), Place("x")),
            "models(): mail: Urgent would arrive as Email",
        ),
        (
            models,
            ({"To": 1}, None, [], {}, pathlib.Path("x"), Place("x")),
            "models(): mail: To: Input should be a valid string",
        ),
        (models, (MAIL, None, [], {}, 3, Place("x")), "models(): path: Expected `str`, got `int`"),
    ],
)
def test_a_value_deep_inside_is_refused_too(function: Callable[..., Any], args: tuple[Any, ...], text: str) -> None:
    with pytest.raises(BadArguments) as caught:
        codec(function).encode(args, {})
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


def test_a_null_that_is_meant_is_not_mistaken_for_nan() -> None:
    assert received(anything, [None, "null", 1.5]) == {"value": [None, "null", 1.5]}


def test_payloads_over_the_limits_are_refused() -> None:
    with pytest.raises(PayloadTooLarge, match=r"^anything\(\): 1,012 bytes of JSON, the limit is 1,000; keep large"):
        ArgumentCodec(anything, "anything", max_bytes=1_000).encode(("x" * 1_000,), {})
    nested: list[Any] = []
    for _ in range(100):
        nested = [nested]
    with pytest.raises(PayloadTooDeep, match=r"^anything\(\): nested 102 levels deep, the limit is 64$"):
        codec(anything).encode((nested,), {})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(PayloadTooDeep, match=r"^anything\(\): nested too deeply; the limit is 64 levels$"):
        codec(anything).encode((endless,), {})


@pytest.mark.parametrize(
    ("function", "payload", "text"),
    [
        (resize, b'{"width":4}', "resize(): Object missing required field `url`; it takes url, width=800"),
        (resize, b'{"url":"a","old":1}', "resize(): Object contains unknown field `old`; it takes url, width=800"),
        (resize, b'{"url":1}', "resize(): url: Expected `str`, got `int`; it takes url, width=800"),
        (resize, b'{"url"', "resize(): Input data was truncated; it takes url, width=800"),
        (resize, b"[]", "resize(): Expected `object`, got `array`; it takes url, width=800"),
        (
            rest,
            b'{"a":1,"*rest":[1]}',
            "rest(): '*rest' needs those before it; it takes a, b=2, *rest, key='k', **more",
        ),
    ],
)
def test_a_payload_that_no_longer_fits_the_function_is_refused(
    function: Callable[..., Any], payload: bytes, text: str
) -> None:
    with pytest.raises(BadArguments) as caught:
        codec(function).decode(payload)
    assert str(caught.value) == text


def test_results_come_back_as_the_return_annotation_says() -> None:
    here = codec(makes_points)
    assert here.decode_result(here.encode_result([Point(1, 2)])) == [Point(1, 2)]
    with pytest.raises(BadResult, match=r"^makes_points\(\): result: \[0\]: Expected `object`, got `int`$"):
        here.decode_result(b"[1]")


def test_snooze_and_cancel_in_the_return_annotation_are_no_results() -> None:
    here = codec(outcomes)
    assert here.decode_result(b"3") == 3
    with pytest.raises(BadResult, match=r"^outcomes\(\): result: Expected `int`, got `str`$"):
        here.decode_result(b'"3"')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (object(), "resize(): result: cannot be written as JSON: Encoding objects of type object is unsupported"),
        ([float("inf")], "resize(): result: [0]: inf cannot be written as JSON"),
        (float("nan"), "resize(): result: nan cannot be written as JSON"),
        ({float("nan"): 1}, "resize(): result: nan: nan cannot be written as JSON"),
        ({"a": {float("-inf"): 1}}, "resize(): result: a.-inf: -inf cannot be written as JSON"),
    ],
)
def test_results_that_cannot_be_json_are_refused(value: Any, text: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        codec(resize).encode_result(value)
    assert type(caught.value) is BadResult
    assert str(caught.value) == f"{text}; return JSON values, a dataclass or None"


def test_an_annotation_that_json_cannot_give_is_refused_when_the_task_is_declared() -> None:
    with pytest.raises(BadArguments, match=r"^either\(\): the annotation of shape cannot be used: Type unions"):
        codec(either)


class Socket:
    pass


@dataclasses.dataclass
class Holder:
    socket: Socket


def takes_socket(socket: Socket) -> None: ...
def takes_holder(number: int, holders: list[Holder]) -> None: ...
def takes_callback(*callbacks: Callable[[], None]) -> None: ...
def gives_socket() -> Socket | None: ...
def gives_either() -> Point | Other: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            takes_socket,
            "the annotation of socket cannot be used: tests.producer.test_arguments.Socket cannot be written",
        ),
        (
            takes_holder,
            "the annotation of holders cannot be used: tests.producer.test_arguments.Socket cannot be written",
        ),
        (takes_callback, "the annotation of callbacks cannot be used: collections.abc.Callable cannot be written"),
        (gives_socket, "the return annotation cannot be used: tests.producer.test_arguments.Socket cannot be written"),
    ],
)
def test_a_class_without_a_form_in_json_is_refused_when_the_task_is_declared(
    function: Callable[..., Any], text: str
) -> None:
    with pytest.raises(BadArguments) as caught:
        codec(function)
    assert str(caught.value).startswith(f"{function.__name__}(): {text} as JSON; use ")
    assert "\n" not in str(caught.value)


def test_models_come_back_as_results() -> None:
    for function, value in ((models, MAIL), (uploaded, UPLOAD)):
        here = codec(function)
        assert here.decode_result(here.encode_result(value)) == value
    assert codec(gives_either).decode_result(b'{"x":1}') == {"x": 1}


def either(number: int, shape: Point | Circle | Other) -> None: ...


@dataclasses.dataclass
class Other:
    x: int


def test_defaults_are_left_to_the_function() -> None:
    def greet(name: str, greeting: str = "old") -> str:
        return f"{greeting} {name}"

    payload = codec(greet).encode(("Ada",), {})

    def changed(name: str, greeting: str = "new") -> str:
        return f"{greeting} {name}"

    args, kwargs = codec(changed).decode(payload)
    assert changed(*args, **kwargs) == "new Ada"
