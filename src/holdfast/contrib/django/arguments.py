"""The arguments of Django tasks: stored by the names of the task's own function, checked by its annotations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from inspect import Parameter
from typing import Any, Final

import msgspec

from holdfast.core.arguments import ArgumentCodec, hints_of
from holdfast.core.conversions import to_json, unusable
from holdfast.errors import BadArguments

#: How many arguments a caller gave by position: they are stored by name, and shown as they were given.
POSITIONAL: Final = "django-positional"
_BY_POSITION: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def with_signature_of(task: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """The function that runs a task, with the parameters of the task's own function, but for the context.

    An annotation that JSON has no form for counts as none: Django's tasks may have any.
    """
    hints = hints_of(task.func)
    parameters = [each.replace(annotation=Parameter.empty) for each in _parameters(task)]
    update_wrapper(run, task.func)
    run.__annotations__ = {
        each.name: hints[each.name] for each in parameters if each.name in hints and not unusable(hints[each.name])
    }
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def read_envelopes(task: Any, codec: ArgumentCodec) -> None:
    """Makes a codec read `{"args": […], "kwargs": {…}}` too, the form in which earlier versions stored arguments."""
    signature = inspect.Signature(_parameters(task))

    def opened(payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        try:
            found = msgspec.json.decode(payload, type=_Envelope)
        except msgspec.MsgspecError:
            return None
        try:
            signature.bind(*found.args, **found.kwargs)
        except TypeError as error:
            raise BadArguments(f"{codec.name}(): {error}") from None
        return tuple(found.args), found.kwargs

    codec.other_form = opened


def positional(headers: dict[str, str]) -> int:
    """How many arguments a task was given by position."""
    count = headers.get(POSITIONAL, "")
    return int(count) if count.isascii() and count.isdigit() else 0


def as_given(task: Any, count: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as JSON, the first ones by position as the caller gave them."""
    values, named = list(args), dict(kwargs)
    for each in _parameters(task)[len(values) : count]:
        if each.kind not in _BY_POSITION or each.name not in named:
            break
        values.append(named.pop(each.name))
    plain: tuple[list[Any], dict[str, Any]] = msgspec.to_builtins((values, named), enc_hook=to_json)
    return plain


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    args: list[Any]
    kwargs: dict[str, Any]


def _parameters(task: Any) -> list[Parameter]:
    return list(inspect.signature(task.func).parameters.values())[1 if task.takes_context else 0 :]
