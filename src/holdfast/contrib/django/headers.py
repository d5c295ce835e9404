"""Headers of the tasks that a block of code enqueues: Django's own calls have no place for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from holdfast.errors import BadOption

_current: ContextVar[Mapping[str, str]] = ContextVar("holdfast_django_headers", default={})  # noqa: B039  (never changed)
_OURS: Final = "django-"


@contextmanager
def headers(given: Mapping[str, str]) -> Iterator[None]:
    """Adds headers to every Django task that is enqueued in the block; a task reads them from `current().headers`."""
    if not isinstance(given, Mapping):
        raise BadOption(f"headers takes a mapping, as in headers({{'tenant': 'acme'}}), not {given!r}")
    for name in given:
        if isinstance(name, str) and name.startswith(_OURS):
            raise BadOption(f"headers: names that begin with {_OURS} are taken by Holdfast: rename {name!r}")
    token = _current.set({**_current.get(), **given})
    try:
        yield
    finally:
        _current.reset(token)


def current_headers() -> dict[str, Any]:
    """Those of the blocks that this code is in."""
    return dict(_current.get())
