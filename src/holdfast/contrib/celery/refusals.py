"""What the compatibility layer has and what it refuses, in the words that `check`, imports and calls share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

from holdfast.errors import UsageError


class NotSupported(UsageError, ImportError):
    """A feature of Celery's that `holdfast.contrib.celery` does not have."""


_WORKFLOW = "workflows are not there yet; call the next task at the end of the one before, or keep this on Celery"
_BY_NAME = "use task.s(…), or app.send_task(name, …)"
#: Callables that combine tasks, and why they are refused.
WORKFLOWS: Final = {
    "chain": _WORKFLOW,
    "group": _WORKFLOW,
    "chord": _WORKFLOW,
    "chunks": "enqueue one task per chunk",
    "xmap": "enqueue one task per item",
    "xstarmap": "enqueue one task per item",
    "signature": _BY_NAME,
    "subtask": _BY_NAME,
    "maybe_signature": _BY_NAME,
}

_CONTROL = "no control commands; use `holdfast workers`, `holdfast tasks` and `holdfast queues`, or app.holdfast"
_EVENTS = "no events, so no Flower; use `holdfast tasks`, `holdfast workers` and the metrics of `holdfast server`"
#: Modules and names of Celery's, and why they are refused.
REFUSED_IMPORTS: Final = {
    "celery.bootsteps": "no bootsteps; open what workers need in worker_process_init or a lifespan of app.holdfast",
    "celery.worker": _CONTROL,
    "celery.app.control": _CONTROL,
    "celery.events": _EVENTS,
    "celery.bin": "no celery command line; use `holdfast`",
    "celery.loaders": "no loaders; config_from_object reads the settings",
    "celery.concurrency": "no pools of Celery's; see --concurrency and --processes of `holdfast worker`",
    "celery.contrib.abortable": "revoke() tells a running task: look at holdfast.current().cancelled",
    "celery.contrib.testing": "use task_always_eager, or holdfast.testing",
    "celery.contrib.pytest": "use task_always_eager, or holdfast.testing",
    "celery.contrib.batches": "no batches; enqueue one task for many items",
    "celery.backends": "no result backends; results are in the store",
    "celery.platforms": "`holdfast worker` runs in the foreground, under systemd or a container",
    "celery.result.GroupResult": _WORKFLOW,
    "celery.result.ResultSet": _WORKFLOW,
    "celery.schedules.solar": "no solar schedules",
    "celery.exceptions.Reject": "raise an exception to fail, or self.retry(countdown=…) to run later",
    "celery.signals.setup_logging": "`holdfast worker` sets up logging: --log-level, --log-format",
    "celery.signals.after_setup_logger": "`holdfast worker` sets up logging: --log-level, --log-format",
    "celery.signals.after_setup_task_logger": "`holdfast worker` sets up logging: --log-level, --log-format",
    "celery.signals.beat_init": "there is no beat process; any worker fires schedules",
    "celery.signals.beat_embedded_init": "there is no beat process; any worker fires schedules",
    "celery.signals.heartbeat_sent": _EVENTS,
    "celery.signals.task_received": _EVENTS,
    "celery.signals.task_sent": "use after_task_publish",
    "celery.signals.task_revoked": "use task_postrun: its state is REVOKED",
}

_NO_BROKER = "there is no broker connection; enqueue with delay() or app.send_task, see tasks with app.holdfast.tasks"
_NO_BACKEND = "no result backend; results are in the store: AsyncResult, app.holdfast.tasks"
_NO_BEHAVIOUR = "write it into the task, or into a base class"
#: Attributes of Celery's objects, and why they are refused: of an app, a task, a result and a signature.
REFUSED_ATTRIBUTES: Final[Mapping[str, Mapping[str, str]]] = {
    "app": {
        **dict.fromkeys(("backend", "backend_cls"), _NO_BACKEND),
        **dict.fromkeys(("amqp", "connection", "connection_for_read", "connection_for_write"), _NO_BROKER),
        **dict.fromkeys(("pool", "producer_pool", "producer_or_acquire", "connection_or_acquire"), _NO_BROKER),
        **dict.fromkeys(("broker_connection", "default_connection", "default_producer"), _NO_BROKER),
        **dict.fromkeys(("events", "bugreport"), _EVENTS),
        **dict.fromkeys(("loader", "loader_cls", "user_options", "steps"), "no loaders and bootsteps; use a lifespan"),
        **dict.fromkeys(("worker_main", "start", "Worker", "WorkController"), "run `holdfast worker proj.celery:app`"),
        "Beat": "there is no beat process; `holdfast celery beat` converts schedules once",
        "add_defaults": "give the settings to Celery(…) or config_from_object",
        "config_from_envvar": "use config_from_object(os.environ['…'])",
        "config_from_cmdline": "use config_from_object",
        "setup_security": "see signing and encryption: HOLDFAST_KEYS",
        "canvas": _WORKFLOW,
        "GroupResult": _WORKFLOW,
        "ResultSet": _WORKFLOW,
        "select_queues": "use --queues of `holdfast worker`",
    },
    "task": {
        "backend": _NO_BACKEND,
        "rate_limit": "no rate limits; use a queue of its own with `holdfast worker --concurrency`",
        "send_event": _EVENTS,
        "send_events": _EVENTS,
        "signature_from_request": "use self.retry, or enqueue the task again",
        "subtask_from_request": "use self.retry, or enqueue the task again",
        "on_replace": _WORKFLOW,
        "annotate": _NO_BEHAVIOUR,
        "Strategy": _CONTROL,
        "start_strategy": _CONTROL,
    },
    "result": {
        "then": "no callbacks; enqueue a task at the end of the one before",
        "on_ready": "no callbacks; enqueue a task at the end of the one before",
        "collect": _WORKFLOW,
        "iterdeps": _WORKFLOW,
        "graph": _WORKFLOW,
        "build_graph": _WORKFLOW,
        "get_leaf": _WORKFLOW,
        "backend": _NO_BACKEND,
        "supports_native_join": _NO_BACKEND,
        "as_tuple": "keep result.id",
        "as_list": "keep result.id",
        "worker": "see `holdfast tasks show`",
    },
    "signature": {
        "freeze": "give apply_async a task_id",
        "on_error": "use on_failure of a base class, or task_failure",
        "stamp": "use headers",
        "stamp_links": "use headers",
        "flatten_links": _WORKFLOW,
        "unchain_tasks": _WORKFLOW,
        "app": "use the app itself",
        "type": "use app.tasks[signature.task]",
        "id": "the id comes with the result of apply_async",
        "replace": "use clone()",
        "update": "use set() or clone()",
    },
}

#: Options of tasks, calls and settings, and why they are refused.
REFUSED_OPTIONS: Final = {
    "rate_limit": "no rate limits; use a queue of its own with `holdfast worker --concurrency`",
    "task_default_rate_limit": "no rate limits; use a queue of its own with `holdfast worker --concurrency`",
    "task_annotations": "no annotations; set the options where the tasks are declared",
    "link": _WORKFLOW,
    "link_error": "use on_failure of a base class, or task_failure",
    "chord": _WORKFLOW,
    "group_id": _WORKFLOW,
    "add_to_parent": _WORKFLOW,
    "producer": "there is no producer pool; leave it out",
    "connection": "there is no broker connection; leave it out",
    "exchange": "there are no exchanges; name a queue",
    "routing_key": "there are no exchanges; name a queue",
    "MessageGroupId": "no message groups; use a queue with one slot",
    "message_properties": "no message properties; use headers",
    "pydantic": "pass model.model_dump(mode='json'), or declare the task with @app.task of a Holdfast app",
    "worker_consumer": "no bootsteps",
}

#: The names that each module has; `import celery…` becomes `import holdfast.contrib.celery…`.
SUPPORTED: Final = {
    "celery": frozenset(
        {
            "AsyncResult",
            "Celery",
            "Signature",
            "Task",
            "shared_task",
            "current_app",
            "current_task",
            "signals",
            "states",
        }
        | {"schedules", "result", "exceptions", "app", "uuid"}
    ),
    "celery.app": frozenset({"Celery"}),
    "celery.app.task": frozenset({"Task"}),
    "celery.canvas": frozenset({"Signature"}),
    "celery.schedules": frozenset({"crontab", "schedule"}),
    "celery.result": frozenset({"AsyncResult", "EagerResult"}),
    "celery.states": frozenset(
        {"PENDING", "STARTED", "SUCCESS", "FAILURE", "RETRY", "REVOKED", "RECEIVED"}
        | {"READY_STATES", "UNREADY_STATES", "EXCEPTION_STATES", "PROPAGATE_STATES", "ALL_STATES"}
    ),
    "celery.exceptions": frozenset(
        {"CeleryError", "ImproperlyConfigured", "TimeoutError", "Retry", "MaxRetriesExceededError", "NotRegistered"}
        | {"SoftTimeLimitExceeded", "TimeLimitExceeded", "TaskRevokedError", "Ignore", "WorkerLostError"}
        | {"OperationalError"}
    ),
    "celery.signals": frozenset(
        {"before_task_publish", "after_task_publish", "task_prerun", "task_postrun", "task_success", "task_failure"}
        | {"task_retry", "worker_init", "worker_ready", "worker_shutdown", "worker_process_init"}
        | {"worker_process_shutdown"}
    ),
    "celery.utils": frozenset({"uuid"}),
    "celery.utils.log": frozenset({"get_task_logger", "get_logger"}),
}


def refuse(name: str, why: str) -> NoReturn:
    """Raises the one line that says what is not supported, and what to do instead."""
    raise NotSupported(f"{name}: {why}")


def missing_attribute(kind: str, of: object, name: str) -> Exception:
    """What an object of the compatibility layer raises for an attribute that it does not have."""
    why = REFUSED_ATTRIBUTES[kind].get(name)
    if why is None:
        return AttributeError(f"{type(of).__name__!r} object has no attribute {name!r}")
    return NotSupported(f"{kind}.{name}: {why}")


def missing(module: str, name: str) -> Exception:
    """What a module of the compatibility layer raises for a name that it does not have."""
    full = f"celery{module.removeprefix('holdfast.contrib.celery')}.{name}"
    why = REFUSED_IMPORTS.get(full)
    if why is None:
        return AttributeError(f"{full} is not in holdfast.contrib.celery")
    return NotSupported(f"{full}: {why}")
