"""Django's tasks in a process that forks and handles signals."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from holdfast.contrib.django import known_tasks
from holdfast.contrib.django.compat import task_backends
from tests.contrib.project.case import Case
from tests.contrib.project.jobs import tasks

#: A child that hangs is ended by this signal.
HANG_S = 60


class Forking(Case):
    def test_a_child_enqueues_though_a_thread_held_every_lock_at_the_fork(self) -> None:
        tasks.add.enqueue(1)
        known: Any = task_backends["default"].known
        holding, done = threading.Event(), threading.Event()

        def hold() -> None:
            with known_tasks._lock, known._lock:
                holding.set()
                done.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        holding.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(HANG_S)
            tasks.charge.enqueue(2)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        done.set()
        holder.join()
        assert os.waitstatus_to_exitcode(status) == 0

    def test_a_signal_handler_enqueues_while_a_task_is_made_known(self) -> None:
        before = signal.signal(signal.SIGUSR1, lambda *_: ids.append(tasks.add.enqueue(2).id))
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        signal.alarm(HANG_S)
        self.addCleanup(signal.alarm, 0)
        ids: list[str] = []
        line = 0
        while True:
            line += 1
            known: Any = task_backends["default"].known
            known._tasks.clear()
            known.app._task_types.clear()
            tracer = _Interrupt(line)
            sys.settrace(tracer)
            try:
                ids.append(tasks.add.enqueue(1).id)
            finally:
                sys.settrace(None)
            if tracer.lines_left > 0:
                break
        assert line > 10
        assert len(set(ids)) == 2 * line - 1


class _Interrupt:
    """Sends a signal at the n-th line that runs while a task is made known."""

    def __init__(self, line: int) -> None:
        self.lines_left = line

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith(("known_tasks.py", "holdfast/app.py")):
            return None
        if event == "line":
            self.lines_left -= 1
            if self.lines_left == 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGUSR1)
        return self
