"""Whether a worker lives, and whether it gets work: for those who ask over HTTP, and for systemd."""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.core.durations import format_ms
from holdfast.worker.child_process import ChildProcess
from holdfast.worker.crew import Crew
from holdfast.worker.heartbeat import Heartbeat


class Vitals:
    """Answers from what the supervisor knows; no child is asked, since user code may block it."""

    def __init__(self, ready_within_ms: int, clock: Clock, crew: Crew) -> None:
        self._ready_within_ms = ready_within_ms
        self._clock = clock
        self._crew = crew
        self._heartbeat: Heartbeat | None = None

    def opened(self, heartbeat: Heartbeat) -> None:
        """The store has heard of the worker."""
        self._heartbeat = heartbeat

    def sick(self) -> str:
        """Why it should be started anew; "" while it lives."""
        if self._crew.children() or self._crew.closed:
            return ""
        return "no child runs; the log says why"

    def unready(self) -> str:
        """Why it does not work; "" while it does."""
        if self._crew.closed:
            return "draining"
        if self._heartbeat is None:
            return "starting"
        if self._recent(self._crew.reserved_at_ms) or self._full(self._heartbeat):
            return ""
        if self._crew.reserved_at_ms is None:
            return "no reserve has succeeded yet"
        silent_ms = self._clock.monotonic_ms() - self._crew.reserved_at_ms
        return f"no reserve has succeeded for {format_ms(silent_ms // 1000 * 1000)}"

    def status(self) -> str:
        """One line for people."""
        running = sum(child.running for child in self._crew.children())
        reason = self.sick() or self.unready()
        return f"{f'not ready: {reason}' if reason else 'ready'}; tasks running: {running}"

    def _recent(self, moment_ms: int | None) -> bool:
        return moment_ms is not None and self._clock.monotonic_ms() - moment_ms <= self._ready_within_ms

    def _full(self, heartbeat: Heartbeat) -> bool:
        """A child without a free slot asks for nothing; that the store hears of its claims has to do."""
        return self._recent(heartbeat.succeeded_at_ms) and any(map(self._is_full, self._crew.children()))

    def _is_full(self, child: ChildProcess) -> bool:
        return child.running >= (1 if child.alone else self._crew.concurrency.current)
