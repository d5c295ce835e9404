"""What a task may say instead of a result: not now, or never."""

from __future__ import annotations

from holdfast.core.durations import Duration, duration_ms


class Snooze(Exception):
    """Returned or raised by a task: run me again after this delay, and do not count this attempt."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay_ms = duration_ms(delay, "Snooze")


class Cancel(Exception):
    """Returned or raised by a task: end me as cancelled, for this reason, without a retry."""

    def __init__(self, reason: str = "cancelled by the task itself") -> None:
        super().__init__(reason)
        self.reason = str(reason)
