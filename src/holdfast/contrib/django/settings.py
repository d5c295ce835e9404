"""OPTIONS of the backend in settings.TASKS."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec

from holdfast.app import Holdfast
from holdfast.contrib.django.compat import InvalidTaskBackend
from holdfast.core.retry import Retry
from holdfast.errors import BadOption, UsageError


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
    lease: str | float = "30s"
    result_ttl: str | float = "1d"
    dead_letter_ttl: str | float = "14d"

    def make_app(self) -> Holdfast:
        """The app that these options describe."""
        return Holdfast(
            self.url,
            lease=self.lease,
            result_ttl=self.result_ttl,
            dead_letter_ttl=self.dead_letter_ttl,
            retry=_retry(self.retry),
        )


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
