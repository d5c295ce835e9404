"""OPTIONS of the backend in settings.TASKS."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from django.conf import settings
from django.utils.module_loading import import_string

from holdfast.app import Holdfast
from holdfast.contrib.django.compat import InvalidTaskBackend
from holdfast.core.durations import duration_ms
from holdfast.core.retry import Retry
from holdfast.errors import BadOption, UsageError
from holdfast.producer.enqueue import Prepared
from holdfast.stores.open import DEFAULT_URL, split_urls


class BackendOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may stand there."""

    #: The store; else HOLDFAST_URL.
    url: str | None = None
    #: Enqueues what a transaction of Django's default database enqueues after its commit; False: at once.
    on_commit: bool = True
    #: The Django database that the store is in: what a transaction of it enqueues becomes part of it.
    database: str | None = None
    #: More modules with tasks than the `tasks` of the installed apps.
    modules: tuple[str, ...] = ()
    #: As the arguments of `Retry`.
    retry: dict[str, Any] = {}
    timeout: str | float | None = None
    hard_timeout: str | float | None = None
    expires: str | float | None = None
    run: Literal["process"] | None = None
    #: The path of a function that is called with each prepared call, as `Holdfast.outgoing` does.
    outgoing: str | None = None
    lease: str | float = "30s"
    result_ttl: str | float = "1d"
    dead_letter_ttl: str | float = "14d"

    def make_app(self) -> Holdfast:
        """The app that these options describe."""
        if self.expires is not None:
            duration_ms(self.expires, "expires")
        app = Holdfast(
            in_project(self.url),
            lease=self.lease,
            result_ttl=self.result_ttl,
            dead_letter_ttl=self.dead_letter_ttl,
            retry=_retry(self.retry),
            timeout=self.timeout,
            hard_timeout=self.hard_timeout,
            run=self.run,
        )
        if self.outgoing is not None:
            app.outgoing(_imported_when_called(self.outgoing))
        return app


def in_project(url: str | None) -> str | None:
    """The URL, with relative SQLite files in settings.BASE_DIR, so that `manage.py` and scripts use the same store.

    HOLDFAST_URL stays relative to the current folder, as it is for `holdfast`.
    """
    base = getattr(settings, "BASE_DIR", None)
    if base is None or (url is None and os.environ.get("HOLDFAST_URL")):
        return url
    return ",".join(_in_folder(str(Path(base).absolute()), each) for each in split_urls(url or DEFAULT_URL))


def _in_folder(folder: str, url: str) -> str:
    scheme, _, path = url.partition(":///")
    is_relative = scheme == "sqlite" and path and not path.startswith("/")
    return f"sqlite:///{quote(folder)}/{path}" if is_relative else url


def _imported_when_called(path: str) -> Callable[[Prepared[Any]], None]:
    """The hook: when the settings are read, the module that has it cannot always be imported yet."""

    def outgoing(call: Prepared[Any]) -> None:
        import_string(path)(call)

    return outgoing


def options_of(alias: str, given: dict[str, Any]) -> BackendOptions:
    """The options, or an error of Django's in one line."""
    try:
        return msgspec.convert(given, BackendOptions)
    except msgspec.ValidationError as error:
        raise refused(alias, str(error)) from None


def refused(alias: str, why: str | UsageError) -> Exception:
    """The error for settings that cannot be."""
    return InvalidTaskBackend(f"TASKS[{alias!r}]: {why}")


def _retry(arguments: dict[str, Any]) -> Retry | None:
    try:
        return Retry(**arguments) if arguments else None
    except TypeError:
        raise BadOption(
            f"retry: it takes {', '.join(field.name for field in fields(Retry))}, not {', '.join(arguments)}"
        ) from None
