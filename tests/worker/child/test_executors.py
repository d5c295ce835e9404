"""Executors: a thread that ends after its child process has shut down."""

from __future__ import annotations

import asyncio
import threading

from holdfast.worker.child.executors import ThreadExecutor


def test_a_thread_that_ends_after_the_event_loop_was_closed_ends_silently() -> None:
    loop = asyncio.new_event_loop()
    finished: list[str] = []
    errors: list[object] = []
    may_end, threads = threading.Event(), list[threading.Thread]()

    def perform(job: str) -> str:
        threads.append(threading.current_thread())
        may_end.wait()
        return job

    executor: ThreadExecutor[str, str] = ThreadExecutor(
        loop, perform, lambda job, outcome: finished.append(outcome), lambda job, error: str(error)
    )
    hook, threading.excepthook = threading.excepthook, errors.append
    try:
        executor.start("late")
        while not threads:
            threading.Event().wait(0.001)
        loop.close()
        may_end.set()
        threads[0].join(timeout=30)
    finally:
        threading.excepthook = hook
    assert not threads[0].is_alive()
    assert (errors, finished) == ([], [])
