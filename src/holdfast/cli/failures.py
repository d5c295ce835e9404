"""How an error leaves the command line: one line, and an exit code that tells a no from a wrong call."""

from __future__ import annotations

from holdfast.errors import (
    HoldfastError,
    Refused,
    RequestConflict,
    UnknownSchedule,
    UnknownTask,
    UnknownToken,
    UnknownWorker,
    UsageError,
)

#: Wrong for what the store holds now, not in themselves: the same call may be right tomorrow.
_NO = (UnknownTask, UnknownSchedule, UnknownToken, UnknownWorker, Refused, RequestConflict)


def exit_code(error: HoldfastError) -> int:
    """2 if the call has to be mended, 1 if the answer is no."""
    return 2 if isinstance(error, UsageError) and not isinstance(error, _NO) else 1


def one_line(message: str) -> str:
    """The message on one line, safe to print."""
    from holdfast.admin.text import printable

    return printable(" ".join(message.split()))
