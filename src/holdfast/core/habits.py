"""Habits from Celery, RQ and Dramatiq: a call or an option of theirs gets an error that names ours."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

from holdfast.errors import BadOption

F = TypeVar("F", bound=Callable[..., Any])

#: Calls and attributes of a task elsewhere; `{call}` is the name of the function.
TASK_HABITS: Final = {
    "delay": "write {call}.enqueue(...)",
    "apply_async": "write {call}.enqueue(...), with options {call}.using(delay='10s', queue='mail').enqueue(...)",
    "send": "write {call}.enqueue(...)",
    "defer": "write {call}.enqueue(...)",
    "defer_async": "write await {call}.aenqueue(...)",
    "kiq": "write await {call}.aenqueue(...)",
    "send_with_options": "write {call}.using(delay='10s').enqueue(...)",
    "message": "write {call}.prepare(...), which app.enqueue_many takes",
    "s": "write {call}.prepare(...), which app.enqueue_many takes",
    "si": "write {call}.prepare(...), which app.enqueue_many takes",
    "signature": "write {call}.prepare(...), which app.enqueue_many takes",
    "apply": "write {call}(...), which runs it immediately in this process",
    "run": "write {call}(...), which runs it immediately in this process",
    "options": "write {call}.using(delay='10s')",
    "retry": "raise an exception inside of the task, or Again('30s') for a delay of its own",
    "request": "write current() inside of the task",
    "map": "write app.enqueue_many({call}.prepare(each) for each in ...)",
    "starmap": "write app.enqueue_many({call}.prepare(*each) for each in ...)",
    "chunks": "write app.enqueue_many({call}.prepare(each) for each in ...)",
}
#: The same of the result of a call.
HANDLE_HABITS: Final = {
    "get": "write handle.result(timeout=10)",
    "id": "write handle.task_id",
    "state": "write handle.status().state",
    "ready": "write handle.status().is_finished",
    "successful": "write handle.status().state == 'succeeded'",
    "failed": "write handle.status().state",
    "revoke": "write handle.cancel()",
    "info": "write handle.status().progress",
    "traceback": "write handle.status().error.traceback",
    "get_result": "write handle.result(timeout=10)",
}
#: The same of an app.
APP_HABITS: Final = {
    "as_completed": "write holdfast.as_completed(handles)",
    "enqueue": "write send.enqueue(...) of the task `send`, or app.enqueue_many(...) of prepared calls",
    "send_task": "write app.task_types['name'].enqueue(...)",
    "actor": "write @app.task",
    "job": "write @app.task",
    "shared_task": "write @app.task",
    "AsyncResult": "write app.handle(task_id)",
    "autodiscover_tasks": "write app.discover('tasks')",
    "conf": "give options to Holdfast(...), or to each @app.task(...)",
    "control": "write handle.cancel(), app.queues.pause(queue), or see `holdfast workers --help`",
    "add_periodic_task": "write @app.cron('0 3 * * *') or @app.every('10m') above the function",
    "periodic_task": "write @app.cron('0 3 * * *') or @app.every('10m') above the function",
    "on_after_configure": "write @app.cron('0 3 * * *') or @app.every('10m') above the function",
    "worker_main": "run `holdfast worker module:app`",
}
_RETRY: Final = "write retry=Retry(max_attempts=5, base='30s', cap='30m')"
#: Options of tasks and of calls elsewhere.
OPTION_HABITS: Final = {
    "countdown": "write delay='10s' (in using)",
    "eta": "write run_at=datetime(..., tzinfo=UTC) (in using)",
    "args": "pass the arguments to enqueue(...)",
    "kwargs": "pass the arguments to enqueue(...)",
    "task_id": "write request_id='...' (in using), which makes a repeated call the same task",
    "job_id": "write request_id='...' (in using), which makes a repeated call the same task",
    "bind": "leave it out and write current() inside of the task",
    "base": "leave it out; @app.around wraps every task of the app",
    "max_retries": "write retry=Retry(max_attempts=5): the first attempt counts too",
    "default_retry_delay": _RETRY,
    "retry_backoff": _RETRY,
    "retry_backoff_max": _RETRY,
    "retry_jitter": "write retry=Retry(jitter=0.5)",
    "retry_kwargs": _RETRY,
    "min_backoff": _RETRY,
    "max_backoff": _RETRY,
    "autoretry_for": "every exception is retried; write retry=Retry(retry_on=(ConnectionError,)) for some of them",
    "throws": "write retry=Retry(give_up_on=(ValueError,))",
    "dont_autoretry_for": "write retry=Retry(give_up_on=(ValueError,))",
    "soft_time_limit": "write timeout='5m'",
    "time_limit": "write hard_timeout='5m'",
    "job_timeout": "write timeout='5m'",
    "max_age": "write expires='1h'",
    "ttl": "write expires='1h'",
    "queue_name": "write queue='mail'",
    "acks_late": "leave it out: a task is acknowledged after it has run",
    "reject_on_worker_lost": "leave it out: the task of a lost worker is run again",
    "ignore_result": "leave it out: a task that returns None has no result to keep",
    "store_results": "leave it out: results are kept for result_ttl of the app",
    "serializer": "leave it out: arguments and results are JSON",
    "rate_limit": "leave it out: there are no rate limits yet",
    "broker": "write Holdfast('redis://localhost:6379/0')",
    "backend": "leave it out: results are in the store of the app",
    "retries": "write retry=Retry(max_attempts=5)",
}


def habit(habits: dict[str, str], what: str, name: str, call: str = "") -> AttributeError:
    """The error about an attribute that is not there; one that other libraries have names ours."""
    advice = habits.get(name)
    text = f"{what} has no attribute {name!r}"
    return AttributeError(text if advice is None else f"{text}: {advice.format(call=call)}")


def unknown_option(what: str, name: str, known: Collection[str]) -> BadOption:
    """The error about an option that is not there; one that other libraries have names ours."""
    import difflib

    advice = OPTION_HABITS.get(name)
    if advice is None:
        close = difflib.get_close_matches(name, known, 1)
        advice = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
    return BadOption(f"{what} has no option {name!r}: {advice}")


def only_known_options(what: str) -> Callable[[F], F]:
    """Decorates a function with options: an unknown one is a `BadOption` that names the right one, no TypeError."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            try:
                return function(*args, **options)
            except TypeError:
                known = [name for name in inspect.signature(function).parameters if name not in {"self", "function"}]
                for name in options:
                    if name not in known:
                        raise unknown_option(what, name, known) from None
                raise

        return checked  # type: ignore[return-value]

    return decorate
