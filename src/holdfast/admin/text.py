"""Text for people: safe to print, short to read."""

from __future__ import annotations

from holdfast.core.durations import format_ms
from holdfast.core.progress import Progress


def printable(text: str) -> str:
    """The text with every control, format and unassigned character escaped, so that data cannot drive a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def first_line(text: str, longest: int = 160) -> str:
    """The first line of a text, cut to a length."""
    line = text.strip().partition("\n")[0].rstrip()
    return line if len(line) <= longest else line[: longest - 1] + "…"


def about_ms(milliseconds: int) -> str:
    """A duration rounded to what a person reads: tenths below ten seconds, whole seconds above."""
    step = 100 if 1_000 <= milliseconds < 10_000 else 1_000 if milliseconds >= 10_000 else 1
    return format_ms(max(0, round(milliseconds / step) * step))


def several(count: int, noun: str, plural: str | None = None) -> str:
    """`1 task`, `12 tasks`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def progress_text(progress: Progress) -> str:
    """`3 of 10, half way`; empty if the run has told nothing."""
    done = "" if progress.done is None else f"{round(progress.done, 2):,}"
    if done and progress.total:
        done += f" of {round(progress.total, 2):,}"
    return ", ".join(part for part in (done, progress.note) if part)
