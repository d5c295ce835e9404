"""A call as an app's own function would record it, for commands with `--app`."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from holdfast.cli.arguments import as_object
from holdfast.errors import UnknownTaskType
from holdfast.producer.recorder import Prepared


def prepared_call(reference: str, type_name: str, arguments: Any, **options: Any) -> Prepared[Any]:
    """The call, checked against the function, with the options of its type and these."""
    app = _load(reference)
    if type_name not in app.task_types:
        known = ", ".join(sorted(app.task_types)) or "none"
        raise UnknownTaskType(f"{reference} has no task type {type_name}; it has {known}")
    using = app.task_types[type_name].using(**options)
    by_position = isinstance(arguments, list)
    prepared: Prepared[Any] = using.prepare(*arguments) if by_position else using.prepare(**as_object(arguments))
    return prepared


def url_of(ctx: click.Context, url: str, reference: str | None) -> str:
    """The URL of the command line, else the app's own if there is one, else what the environment says."""
    given = ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE
    return url if given or reference is None else str(_load(reference).url)


def _load(reference: str) -> Any:
    from holdfast.worker.loading import load_app

    return load_app(reference)
