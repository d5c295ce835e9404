"""`app.conf`: Celery's settings as far as Holdfast has a use for them, and the routes of tasks to queues."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any, Final

from holdfast.contrib.celery.refusals import REFUSED_OPTIONS, refuse

DEFAULTS: Final[dict[str, Any]] = {
    "accept_content": ["json"],
    "beat_schedule": {},
    "broker_url": None,
    "enable_utc": True,
    "holdfast_url": None,
    "imports": (),
    "include": (),
    "result_expires": timedelta(days=1),
    "result_serializer": "json",
    "task_always_eager": False,
    "task_default_priority": None,
    "task_default_queue": "celery",
    "task_eager_propagates": False,
    "task_queues": None,
    "task_routes": None,
    "task_serializer": "json",
    "task_soft_time_limit": None,
    "task_store_eager_result": False,
    "task_time_limit": None,
    "task_track_started": False,
    "timezone": None,
    "worker_pool": "prefork",
}
#: Names that settings had before Celery 4.
_OLD_NAMES: Final = {
    "celery_always_eager": "task_always_eager",
    "celery_default_queue": "task_default_queue",
    "celery_eager_propagates_exceptions": "task_eager_propagates",
    "celery_queues": "task_queues",
    "celery_routes": "task_routes",
    "celery_task_result_expires": "result_expires",
    "celery_track_started": "task_track_started",
    "celerybeat_schedule": "beat_schedule",
    "celeryd_task_soft_time_limit": "task_soft_time_limit",
    "celeryd_task_time_limit": "task_time_limit",
}
_CONTENT: Final = ("task_serializer", "result_serializer", "accept_content")
_THREADED: Final = frozenset({"threads", "gevent", "eventlet", "solo"})


class Settings(MutableMapping[str, Any]):
    """Settings by attribute and by key; unknown ones are kept, for the application's own use."""

    _values: dict[str, Any]
    _sources: list[tuple[Any, str | None]]

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__["_values"] = {"beat_schedule": {}}
        #: What `config_from_object` was given, read on first use: Django's settings may not be ready before.
        self.__dict__["_sources"] = []
        self.update(values)

    def read_later(self, source: Any, namespace: str | None) -> None:
        """Takes the settings of a module, an object or a mapping on first use."""
        self._sources.append((source, namespace))

    def _read(self) -> dict[str, Any]:
        while self._sources:
            source, namespace = self._sources.pop(0)
            for name, value in _items(_found(source)):
                known = _setting(name, namespace)
                if known is not None:
                    self[known] = value
        return self._values

    def __getitem__(self, name: str) -> Any:
        values = self._read()
        return values[name] if name in values else DEFAULTS[name]

    def __setitem__(self, name: str, value: Any) -> None:
        name = _setting(name, None) or name
        if name in _CONTENT and not _is_json(value):
            refuse(name, f"{value!r}: only JSON; pass ids and JSON values, not objects")
        if name in REFUSED_OPTIONS and value:
            refuse(name, REFUSED_OPTIONS[name])
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(DEFAULTS | self._read())

    def __len__(self) -> int:
        return len(DEFAULTS | self._read())

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no setting {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __repr__(self) -> str:
        return f"<Settings {', '.join(sorted(self._values))}>"

    # -- what they mean here --------------------------------------------------------------------------------

    @property
    def zone(self) -> str:
        """The time zone of crontabs and of times without one."""
        return str(self["timezone"] or "UTC")

    @property
    def runs_in_threads(self) -> bool:
        """Whether tasks share a process: as Celery's pools other than prefork do."""
        return self["worker_pool"] in _THREADED

    def priority(self, priority: int | None) -> int | None:
        """Holdfast's priority, where higher is sooner: so it is with RabbitMQ, and the other way with Redis."""
        if priority is None:
            return None
        return -priority if str(self["broker_url"] or "").startswith(("redis", "sentinel", "valkey")) else priority

    def route(self, name: str, args: Any, kwargs: Any, options: Mapping[str, Any], task: Any) -> dict[str, Any]:
        """What `task_routes` says of a call."""
        routes = self["task_routes"]
        for each in routes if isinstance(routes, (list, tuple)) else [routes] if routes else []:
            found = _route_of(each, name, args, kwargs, options, task)
            if found:
                return {"queue": found} if isinstance(found, str) else dict(found)
        return {}


def _is_json(value: Any) -> bool:
    allowed = {"json", "application/json", "application/data", "text"}
    return {value} <= allowed if isinstance(value, str) else set(value) <= allowed


def _found(source: Any) -> Any:
    if not isinstance(source, str):
        return source
    module, _, attribute = source.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def _items(source: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(source, Mapping):
        yield from source.items()
        return
    for name in dir(source):
        if not name.startswith("_"):
            yield name, getattr(source, name)


def _setting(name: str, namespace: str | None) -> str | None:
    """The setting that a name of a settings file stands for; None if it is not one of Celery's."""
    if namespace is not None:
        prefix = f"{namespace}_"
        return name.removeprefix(prefix).lower() if name.startswith(prefix) else None
    low = name.lower()
    if low in _OLD_NAMES:
        return _OLD_NAMES[low]
    if name.isupper() and low.startswith("celery_"):
        return low.removeprefix("celery_")
    return low if name.isupper() or name.islower() else None


def _route_of(route: Any, name: str, args: Any, kwargs: Any, options: Mapping[str, Any], task: Any) -> Any:
    if isinstance(route, str):
        route = _found(route.replace(".", ":", 0) if ":" in route else ":".join(route.rsplit(".", 1)))
    if isinstance(route, Mapping):
        return _matching(route.items(), name)
    if isinstance(route, (list, tuple)):
        return _matching(route, name)
    call: Callable[..., Any] = getattr(route, "route_for_task", route)
    return call(name, args=args, kwargs=kwargs, options=dict(options), task=task)


def _matching(pairs: Any, name: str) -> Any:
    for pattern, found in pairs:
        if isinstance(pattern, re.Pattern):
            if pattern.match(name):
                return found
        elif pattern == name or fnmatchcase(name, pattern):
            return found
    return None
