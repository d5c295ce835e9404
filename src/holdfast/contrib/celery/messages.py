"""Celery's messages as Redis keeps them, and the JSON that Celery makes of arguments."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from holdfast.core.payload import SIGNATURE_HEADER
from holdfast.observe.task_log import ATTEMPTS_HEADER

#: Headers of a task: the id that Celery or the caller gave it, and how often Celery has retried it.
ID_HEADER: Final = "celery-id"
RETRIES_HEADER: Final = "celery-retries"
#: In front of the name of a header whose value is JSON and not text.
JSON_HEADER: Final = "json:"
#: What Celery itself puts into the headers of a message; everything else is the caller's.
_OWN_HEADERS: Final = frozenset(
    {"lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id"}
    | {"parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers"}
    | {"stamps", "meth"}
)


class CannotMove(Exception):
    """Why a message stays with Celery."""


@dataclass(frozen=True, slots=True)
class Message:
    """One call, as Celery sent it; its arguments are JSON as they were in the message."""

    id: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    eta: datetime | None = None
    expires: datetime | None = None
    retries: int = 0
    #: Redis runs priority 0 first, and 9 last.
    priority: int = 0
    soft_time_limit: float | None = None
    time_limit: float | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)


def read(data: bytes) -> Message:
    """The call in a message of Celery's protocol 2; `CannotMove` if only Celery can handle it."""
    envelope = _object(data, "the message is not JSON")
    headers, properties = envelope.get("headers"), envelope.get("properties")
    if not isinstance(headers, dict) or not isinstance(properties, dict) or "task" not in headers:
        raise CannotMove("it is not a message of Celery's task protocol 2")
    if headers.get("group"):
        raise CannotMove("it is a member of a group or chord")
    args, kwargs, embedded = _body(envelope, headers, properties)
    for kind, name in (("chain", "chain"), ("chord", "chord"), ("callbacks", "link"), ("errbacks", "link_error")):
        if embedded.get(kind):
            raise CannotMove(f"it has a follow-up ({name})")
    hard, soft = _pair(headers.get("timelimit"))
    return Message(
        id=str(headers.get("id") or ""),
        task=str(headers["task"]),
        args=args,
        kwargs=kwargs,
        eta=_moment(headers.get("eta"), "eta"),
        expires=_moment(headers.get("expires"), "expires"),
        retries=int(headers.get("retries") or 0),
        priority=int(properties.get("priority") or 0),
        soft_time_limit=soft,
        time_limit=hard,
        headers={name: value for name, value in headers.items() if name not in _OWN_HEADERS and value is not None},
    )


def names_in(data: bytes) -> tuple[str, str]:
    """The id and the task that a message names, as far as it can be read."""
    try:
        headers = json.loads(data)["headers"]
        return str(headers.get("id") or ""), str(headers.get("task") or "")
    except (AttributeError, KeyError, TypeError, ValueError):
        return "", ""


def _body(
    envelope: dict[str, Any], headers: dict[str, Any], properties: dict[str, Any]
) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    kind = envelope.get("content-type")
    if kind != "application/json":
        raise CannotMove(f"its content type is {kind}, not JSON")
    if headers.get("compression"):
        raise CannotMove(f"it is compressed ({headers['compression']})")
    body: Any = envelope.get("body")
    if properties.get("body_encoding") == "base64":
        try:
            body = base64.b64decode(body, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise CannotMove("its body is not base64") from None
    try:
        args, kwargs, embedded = json.loads(body)
    except (TypeError, ValueError):
        raise CannotMove("its body is not [args, kwargs, options] in JSON") from None
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise CannotMove("its body is not [args, kwargs, options] in JSON")
    return args, kwargs, embedded or {}


def _object(data: bytes, otherwise: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        raise CannotMove(otherwise) from None
    if not isinstance(found, dict):
        raise CannotMove(otherwise)
    return found


def _moment(text: Any, header: str) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise CannotMove(f"its {header} is {text!r}, not a time") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _pair(limits: Any) -> tuple[float | None, float | None]:
    return (limits[0], limits[1]) if isinstance(limits, list) and len(limits) == 2 else (None, None)


# -- headers -------------------------------------------------------------------------------------------------


def text_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """Headers as a task keeps them: text as it is, every other value as JSON under a marked name."""
    return {
        name if isinstance(value, str) else f"{JSON_HEADER}{name}": value if isinstance(value, str) else dumps(value)
        for name, value in headers.items()
    }


def caller_headers(headers: Mapping[str, str]) -> dict[str, Any]:
    """The headers that the caller gave, from those of a task."""
    return {
        name.removeprefix(JSON_HEADER): loads(value) if name.startswith(JSON_HEADER) else value
        for name, value in headers.items()
        if name not in {ID_HEADER, RETRIES_HEADER, SIGNATURE_HEADER, ATTEMPTS_HEADER}
    }


# -- JSON as Celery writes it --------------------------------------------------------------------------------


_WRITERS: Final[tuple[tuple[type, str, Callable[[Any], Any]], ...]] = (
    (datetime, "datetime", lambda value: value.isoformat()),
    (date, "date", lambda value: value.isoformat()),
    (time, "time", lambda value: value.isoformat()),
    (Decimal, "decimal", str),
    (UUID, "uuid", lambda value: {"hex": value.hex}),
)
_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "datetime": datetime.fromisoformat,
    "date": lambda text: datetime.fromisoformat(text).date(),
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": lambda parts: UUID(**parts),
    "bytes": lambda text: text.encode(),
    "base64": base64.b64decode,
}


def marked(value: Any) -> Any:
    """The value as plain JSON: datetime, UUID, Decimal and bytes become marked objects, as in Celery's messages."""
    return json.loads(dumps(value))


def dumps(value: Any) -> str:
    """The value as JSON text; `TypeError` names a type that JSON does not have."""
    return json.dumps(value, default=_mark)


def loads(text: str | bytes) -> Any:
    """The value that `dumps` wrote."""
    return json.loads(text, object_hook=_unmark)


def unmarked(value: Any) -> Any:
    """The value with its marked objects restored."""
    if isinstance(value, list):
        return [unmarked(each) for each in value]
    if isinstance(value, dict):
        return _unmark({name: unmarked(each) for name, each in value.items()})
    return value


def _mark(value: Any) -> Any:
    own = getattr(value, "__json__", None)
    if own is not None:
        return own()
    for kind, name, write in _WRITERS:
        if isinstance(value, kind):
            return {"__type__": name, "__value__": write(value)}
    if isinstance(value, bytes):
        try:
            return {"__type__": "bytes", "__value__": value.decode()}
        except UnicodeDecodeError:
            return {"__type__": "base64", "__value__": base64.b64encode(value).decode()}
    if type(value).__module__ == "django.utils.functional":  # a lazy translation
        return str(value)
    raise TypeError(
        f"{type(value).__name__} {value!r:.60} cannot be JSON: pass an id or a JSON value (pickle is not supported)"
    )


def _unmark(value: dict[str, Any]) -> Any:
    if value.keys() != {"__type__", "__value__"} or value["__type__"] not in _READERS:
        return value
    return _READERS[value["__type__"]](value["__value__"])
