"""How long a task blocked the event loop, by a clock that is stepped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.worker.child import blocked
from holdfast.worker.child.blocked import PING_S, BlockedLoop


class Stop(Exception):
    """Ends the watch."""


class Machine:
    """A loop without tasks until `begins`, which is blocked from then on until `ends`."""

    def __init__(self, begins: float, ends: float) -> None:
        self.now, self.begins, self.ends = 0.0, begins, ends
        self.asked: list[Callable[[], None]] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        wakes = self.now + seconds
        if not self.begins < wakes < self.ends:
            for answer in self.asked:
                self.now = max(self.now, min(self.ends, wakes)) if wakes >= self.ends else self.now
                answer()
            self.asked.clear()
        self.now = wakes
        if self.now > self.ends + 2:
            raise Stop

    @property
    def running(self) -> bool:
        return self.begins <= self.now < self.ends


@pytest.mark.parametrize("begins", [0.3, 5.1, 5.9])
def test_a_block_of_the_first_task_is_measured_from_its_beginning_to_its_end(
    begins: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(begins, begins + 4)
    monkeypatch.setattr(blocked, "time", machine)
    loop: Any = SimpleNamespace(call_soon_threadsafe=machine.asked.append)
    watch = BlockedLoop(loop, machine)  # type: ignore[arg-type]  # all that it asks of the slots
    monkeypatch.setattr(watch, "_culprit", lambda: "work[1] at work.py:1" if machine.running else None)
    with caplog.at_level(logging.WARNING, "holdfast.worker"), pytest.raises(Stop):
        watch.watch()
    (line,) = caplog.records
    blocked_s = float(str(line.args[1]))  # type: ignore[index]
    assert 4 - 2 * PING_S <= blocked_s <= 4
