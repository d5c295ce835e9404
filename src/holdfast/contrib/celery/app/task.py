"""`Task`: what a decorated function becomes, with Celery's calls, options and handlers."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from holdfast.contrib.celery.canvas import Signature
from holdfast.contrib.celery.exceptions import ImproperlyConfigured, MaxRetriesExceededError, Retry
from holdfast.contrib.celery.messages import dumps
from holdfast.contrib.celery.refusals import REFUSED_OPTIONS, WORKFLOWS, missing_attribute, refuse
from holdfast.core.retry import MAX_ATTEMPTS

if TYPE_CHECKING:
    from holdfast.contrib.celery.app import Celery
    from holdfast.contrib.celery.result import AsyncResult, EagerResult

#: Characters of `update_state`'s meta, as JSON.
MAX_META_CHARS: Final = 400
#: How often a task may lose its worker process before it fails.
MAX_CRASHES: Final = 3
_UNSET: Final[Any] = object()


@dataclass(eq=False)
class Request:
    """What a task can learn of its own run: `self.request`."""

    task: str = ""
    id: str | None = None
    args: Any = ()
    kwargs: Any = field(default_factory=dict)
    retries: int = 0
    headers: Mapping[str, Any] = field(default_factory=dict)
    delivery_info: Mapping[str, Any] = field(default_factory=dict)
    eta: str | None = None
    expires: str | None = None
    timelimit: tuple[float | None, float | None] = (None, None)
    is_eager: bool = False
    called_directly: bool = True
    hostname: str | None = None
    root_id: str | None = None
    parent_id: str | None = None
    correlation_id: str | None = None
    origin: str | None = None
    group: None = None
    chain: None = None
    chord: None = None
    callbacks: None = None
    errbacks: None = None
    logfile: None = None
    loglevel: int = 0
    #: Whether `__call__` of the base class has begun this run already.
    entered: bool = False
    #: State and meta of the last `update_state` in eager mode.
    noted: tuple[str, Any] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, as of a mapping."""
        return getattr(self, name, default)

    def __getattr__(self, name: str) -> Any:
        """Headers of the call are attributes too."""
        headers = self.__dict__.get("headers", {})
        if name in headers:
            return headers[name]
        raise AttributeError(name)


#: The runs that this code is in, the innermost one last.
running: ContextVar[tuple[tuple[Task, Request], ...]] = ContextVar("holdfast_celery_running", default=())


class Task:
    """A task: class attributes are its options, and its methods can be overridden in a base class."""

    name: str = ""
    abstract: ClassVar[bool] = True
    max_retries: int | None = 3
    default_retry_delay: float = 180
    autoretry_for: tuple[type[BaseException], ...] = ()
    dont_autoretry_for: tuple[type[BaseException], ...] = ()
    retry_backoff: bool | int = False
    retry_backoff_max: int = 600
    retry_jitter: bool = True
    retry_kwargs: Mapping[str, Any] = {}
    queue: str | None = None
    priority: int | None = None
    expires: float | datetime | None = None
    time_limit: float | None = None
    soft_time_limit: float | None = None
    ignore_result: bool = False
    acks_late: bool = True
    throws: tuple[type[BaseException], ...] = ()
    typing: bool = True
    track_started: bool | None = None
    _app: Celery | None = None

    # -- the application ------------------------------------------------------------------------------------

    @property
    def app(self) -> Celery:
        """The app that it belongs to; that of a shared task is the current one."""
        from holdfast.contrib.celery.app import require_app

        return self._app or require_app(f"task {self.name}")

    def bind_to(self, app: Celery) -> None:
        """Makes it a task of this app."""
        self._app = app

    @property
    def request(self) -> Request:
        """The run that this code is in."""
        for task, request in reversed(running.get()):
            if task is self:
                return request
        return Request(task=self.name)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The body of the task."""
        raise NotImplementedError(f"task {self.name} has no run()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the body, in this process; a worker calls it too."""
        request = self.request
        if not request.called_directly and not request.entered:
            request.entered = True
            return self.run(*args, **kwargs)
        token = running.set((*running.get(), (self, Request(task=self.name, args=args, kwargs=kwargs, entered=True))))
        try:
            return self.run(*args, **kwargs)
        finally:
            running.reset(token)

    # -- calls ----------------------------------------------------------------------------------------------

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Enqueues a call."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Any = None, kwargs: Mapping[str, Any] | None = None, task_id: str | None = None, **options: Any
    ) -> AsyncResult:
        """Enqueues a call with options: countdown, eta, expires, queue, priority, headers, time limits."""
        given, named = tuple(args or ()), dict(kwargs or {})
        check_options(options, f"{self.name}.apply_async")
        if self.typing:
            self._check_arguments(given, named)
        if self.app.conf.task_always_eager:
            return self.apply(given, named, task_id=task_id, **options)
        return self.app.publish(self.name, given, named, task_id, options, self)

    def apply(
        self,
        args: Any = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        throw: bool | None = None,
        **options: Any,
    ) -> EagerResult:
        """Runs the task in this process, retries included, without waiting between them."""
        from holdfast.contrib.celery.running import run_eagerly

        if throw is None:
            throw = bool(self.app.conf.task_eager_propagates)
        return run_eagerly(self, tuple(args or ()), dict(kwargs or {}), task_id, throw, options)

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Enqueues a call when Django's transaction commits."""
        self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """As `apply_async`, when Django's transaction commits."""
        from django.db import transaction

        transaction.on_commit(lambda: self.apply_async(*args, **kwargs))

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """The call as an object."""
        return Signature(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """The call as an object that takes no more arguments."""
        return Signature(self, args, kwargs, immutable=True)

    def signature(self, args: Any = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> Signature:
        """The call as an object."""
        return Signature(self, args, kwargs, **options)

    subtask = signature

    def map(self, *_: Any) -> NoReturn:
        """Refused."""
        refuse(f"{self.name}.map()", WORKFLOWS["xmap"])

    def starmap(self, *_: Any) -> NoReturn:
        """Refused."""
        refuse(f"{self.name}.starmap()", WORKFLOWS["xstarmap"])

    def chunks(self, *_: Any) -> NoReturn:
        """Refused."""
        refuse(f"{self.name}.chunks()", WORKFLOWS["chunks"])

    def replace(self, *_: Any) -> NoReturn:
        """Refused."""
        refuse("self.replace()", WORKFLOWS["chain"])

    add_to_chord = replace

    def AsyncResult(self, task_id: str, **_: Any) -> AsyncResult:  # noqa: N802  (Celery's name)
        """The result of a call, by its id."""
        return self.app.AsyncResult(task_id)

    def _check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            inspect.signature(self.run).bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None

    # -- inside of a run ------------------------------------------------------------------------------------

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: Any = _UNSET,
        **options: Any,
    ) -> Retry:
        """Ends this attempt and asks for another one: `raise self.retry(exc=exc, countdown=30)`.

        After `max_retries` it raises `exc`, or the exception that is being handled, or `MaxRetriesExceededError`.
        """
        if args is not None or kwargs is not None or options:
            what = ", ".join([*(["args"] if args else []), *(["kwargs"] if kwargs else []), *options])
            refuse(f"retry({what or 'args'}=…)", "a retry keeps its task and arguments; enqueue another task instead")
        request = self.request
        cause = exc or sys.exc_info()[1]
        if request.called_directly:
            raise cause or MaxRetriesExceededError(f"{self.name}.retry() was called outside of a run")
        limit = self.max_retries if max_retries is _UNSET else max_retries
        self._check_limit(limit)
        if limit is not None and request.retries >= limit:
            raise cause or MaxRetriesExceededError(
                f"Can't retry {self.name}[{request.id}] args:{request.args} kwargs:{request.kwargs}",
                task_args=request.args,
                task_kwargs=request.kwargs,
            )
        retry = Retry(self._retry_delay(eta, countdown), cause)
        if throw:
            raise retry from cause
        return retry

    def _retry_delay(self, eta: datetime | None, countdown: float | None) -> float:
        if eta is not None:
            return max(0.0, (aware(eta, self.app.conf.zone) - datetime.now(UTC)).total_seconds())
        return float(self.default_retry_delay if countdown is None else countdown)

    def _check_limit(self, limit: int | None) -> None:
        """More attempts than the task was enqueued with are not to be had."""
        wanted = MAX_ATTEMPTS if limit is None else limit
        if wanted > self.most_retries() and not self.request.is_eager:
            raise ImproperlyConfigured(
                f"retry(max_retries={limit!r}): {self.name} is declared with {self.most_retries()}: "
                f"declare it with max_retries={limit!r}"
            )

    def most_retries(self) -> int:
        """How often a run may be retried, as declared."""
        declared = [self.max_retries, self.retry_kwargs.get("max_retries", 0)]
        return min(MAX_ATTEMPTS, max(MAX_ATTEMPTS if each is None else each for each in declared))

    def retry_automatically(self, error: BaseException) -> None:
        """Raises `Retry` if the exception is one of `autoretry_for`."""
        if not isinstance(error, self.autoretry_for) or isinstance(error, (Retry, *self.dont_autoretry_for)):
            return
        options = dict(self.retry_kwargs)
        if self.retry_backoff:
            longest = min(self.retry_backoff_max, int(self.retry_backoff) * 2**self.request.retries)
            options["countdown"] = random.randrange(longest + 1) if self.retry_jitter else longest  # noqa: S311
        self.retry(exc=error, **options)

    def update_state(self, task_id: str | None = None, state: str | None = None, meta: Any = None, **_: Any) -> None:
        """Tells the state and meta of the running task, such as PROGRESS; the result shows them within a second."""
        from holdfast.worker.child.context import current

        request = self.request
        if task_id not in {None, request.id}:
            refuse("update_state(task_id=…)", "a task tells of its own run only")
        text = dumps([state, meta])
        if len(text) > MAX_META_CHARS:
            raise ValueError(f"update_state: meta has {len(text)} characters as JSON, the limit is {MAX_META_CHARS}")
        if request.is_eager:
            request.noted = (state or "", meta)
        elif not request.called_directly:
            current().progress(0, note=text)

    # -- handlers, to be overridden -------------------------------------------------------------------------

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Called before each run."""

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Called after a run that succeeded."""

    def on_failure(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Called after a run that failed for good."""

    def on_retry(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Called after a run that is to be repeated."""

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Called after each run."""

    if not TYPE_CHECKING:  # or a checker would believe in every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute("task", self, name)

    def __repr__(self) -> str:
        return f"<@task: {self.name}>"


def check_options(options: Mapping[str, Any], what: str) -> None:
    """`NotSupported` for an option that cannot be kept."""
    for name, value in options.items():
        if name in REFUSED_OPTIONS and value:
            refuse(f"{what}: {name}", REFUSED_OPTIONS[name])
    if options.get("serializer", "json") not in {"json", None}:
        refuse(f"{what}: serializer", "only JSON; pass ids and JSON values")


def aware(moment: datetime, zone: str) -> datetime:
    """The time with a time zone: that of the settings if it has none."""
    from zoneinfo import ZoneInfo

    return moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone))


def seconds_until(moment: float | timedelta | datetime, zone: str) -> float:
    """The seconds that a number, a duration or a time stands for, counted from now."""
    if isinstance(moment, datetime):
        return (aware(moment, zone) - datetime.now(UTC)).total_seconds()
    return moment.total_seconds() if isinstance(moment, timedelta) else float(moment)
