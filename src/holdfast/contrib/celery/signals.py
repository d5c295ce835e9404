"""Celery's signals, sent where Holdfast does the same thing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from holdfast.contrib.celery.refusals import missing

_log = logging.getLogger(__name__)
Receiver = Callable[..., Any]


class Signal:
    """Calls its receivers; one that raises is logged and does not stop the others."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.receivers: list[tuple[Any, Any, Receiver]] = []

    def connect(self, receiver: Receiver | None = None, sender: Any = None, **options: Any) -> Any:
        """Adds a receiver, for one sender (a task, or the name of one) or for all; also used as a decorator."""
        if receiver is None or not callable(receiver):
            return lambda function: self.connect(function, sender, **options)
        uid = options.get("dispatch_uid") or receiver
        self.receivers = [each for each in self.receivers if each[:2] != (uid, sender)]
        self.receivers.append((uid, sender, receiver))
        return receiver

    def disconnect(self, receiver: Receiver | None = None, sender: Any = None, **options: Any) -> bool:
        """Removes a receiver; whether there was one."""
        uid = options.get("dispatch_uid") or receiver
        kept = [each for each in self.receivers if each[:2] != (uid, sender)]
        found = len(kept) != len(self.receivers)
        self.receivers = kept
        return found

    def send(self, sender: Any, **named: Any) -> list[tuple[Receiver, Any]]:
        """Calls the receivers of this sender; gives what each returned, or the exception that it raised."""
        answers: list[tuple[Receiver, Any]] = []
        for _, wanted, receiver in self.receivers:
            if wanted is None or wanted is sender or wanted == getattr(sender, "name", sender):
                try:
                    answers.append((receiver, receiver(signal=self, sender=sender, **named)))
                except Exception as error:  # noqa: BLE001  (of the application's code)
                    _log.exception("receiver %r of signal %s failed", receiver, self.name)
                    answers.append((receiver, error))
        return answers

    send_robust = send

    def __repr__(self) -> str:
        return f"<Signal {self.name}>"


before_task_publish = Signal("before_task_publish")
after_task_publish = Signal("after_task_publish")
task_prerun = Signal("task_prerun")
task_postrun = Signal("task_postrun")
task_success = Signal("task_success")
task_failure = Signal("task_failure")
task_retry = Signal("task_retry")
#: The signals of workers are sent in each of their child processes, which is where tasks run.
worker_init = Signal("worker_init")
worker_process_init = Signal("worker_process_init")
worker_ready = Signal("worker_ready")
worker_process_shutdown = Signal("worker_process_shutdown")
worker_shutdown = Signal("worker_shutdown")


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
