"""What a run says of itself while it goes on, bounded: how far it is, and its last log lines."""

from __future__ import annotations

from collections import deque

import msgspec

from holdfast.core.progress import LogLine, Progress
from holdfast.errors import BadOption
from holdfast.worker.run import Run

MAX_NOTE_CHARS = 500
MAX_LINES = 100
MAX_LINE_CHARS = 1_000
#: Of all lines together, as JSON.
MAX_LOG_BYTES = 16 * 1024

_encode = msgspec.json.encode


class Report:
    """Written by the run, in whatever thread, and read by its child."""

    __slots__ = ("_lines", "_news", "_number", "_progress")

    def __init__(self) -> None:
        self._progress = Progress()
        #: With their sizes.
        self._lines: deque[tuple[LogLine, int]] = deque(maxlen=MAX_LINES)
        self._number = 0
        self._news = False

    def tell(self, done: float, total: float | None, note: str | None) -> None:
        """How far it is; the latest call wins."""
        for value in (done, total):
            if value is not None and not isinstance(value, (int, float)):
                raise BadOption(f"progress: {value!r} is not a number")
        progress = Progress(done, total, None if note is None else storable(str(note)[:MAX_NOTE_CHARS]))
        try:
            _encode(progress)
        except (ValueError, OverflowError) as error:
            raise BadOption(f"progress: {error}") from None
        self._progress = progress
        self._news = True

    def add(self, at_ms: int, level: str, text: str) -> None:
        """One more log line."""
        short = text if len(text) <= MAX_LINE_CHARS else text[: MAX_LINE_CHARS - 1] + "…"
        line = LogLine(at_ms, level, storable(short))
        self._lines.append((line, len(_encode(line))))
        self._number += 1
        self._news = True

    def log(self) -> tuple[LogLine, ...]:
        """The last lines, the first one first, under a mark if there were more."""
        kept: list[LogLine] = []
        size = 0
        for line, line_size in reversed(list(self._lines)):
            size += line_size
            if size > MAX_LOG_BYTES:
                break
            kept.append(line)
        left_out = self._number - len(kept)
        if left_out:
            kept.append(LogLine(kept[-1].at_ms, "", f"… {left_out} line{'s' * (left_out > 1)} left out"))
        return tuple(reversed(kept))

    def news(self) -> bytes | None:
        """All of it as JSON, if there is something new since this was last asked."""
        if not self._news:
            return None
        self._news = False
        return self.all()

    def all(self) -> bytes:
        """All of it as JSON."""
        return _encode(msgspec.structs.replace(self._progress, log=self.log()))


def report_of(run: Run) -> Report:
    """The report of a run, begun with the first word of it."""
    if run.report is None:
        run.report = Report()
    return run.report


def storable(text: str) -> str:
    """The text without lone surrogates, which cannot be written as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
