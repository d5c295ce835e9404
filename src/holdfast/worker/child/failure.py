"""Errors as bounded text that can be stored, whatever their classes do when they are asked for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from traceback import StackSummary, TracebackException, walk_tb
from typing import Final

from holdfast.core.durations import format_ms
from holdfast.core.names import MAX_ERROR_NAME_CHARS, storable
from holdfast.core.retry import error_name
from holdfast.core.task import Again, Failure, LogLine
from holdfast.errors import TimedOut

MAX_MESSAGE_CHARS: Final = 4 * 1024
MAX_TRACEBACK_CHARS: Final = 16 * 1024
#: An error with more causes and sub-exceptions than this is described by its own latest causes only.
MAX_ERRORS: Final = 200
MAX_CAUSES: Final = 50
#: Of each of those causes, the frames nearest to where it was raised.
MAX_FRAMES: Final = 50
#: The text of one of those causes.
_MAX_CAUSE_CHARS: Final = 1_000

_PACKAGE: Final = Path(__file__).parents[2]
#: The code that runs tasks, which no user needs to see in a traceback.
_OWN_CODE: Final = tuple(f"{_PACKAGE / name}{os.sep}" for name in ("worker", "contrib", "runtime"))


def describe(error: BaseException, log: Sequence[LogLine] = ()) -> Failure:
    """The error without the frames of the worker and without local variables, and the log that goes with it."""
    told = cause_of(error) if isinstance(error, Again) else error
    return Failure(name_of(told), storable(_text_of(told), MAX_MESSAGE_CHARS), _traceback(error), tuple(log))


def cause_of(error: Again) -> BaseException:
    """The error for which a task wants to run again, which is what its history is to name; else the wish itself."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__) or error


def describe_timeout(error: BaseException, timeout_ms: int, log: Sequence[LogLine] = ()) -> Failure:
    """The end of a run by its time limit; the traceback tells where it was then."""
    message = f"ran longer than its time limit of {format_ms(timeout_ms)}"
    return Failure(error_name(TimedOut), message, _traceback(error), tuple(log))


def name_of(error: BaseException) -> str:
    """The name of the error's class as it is recorded."""
    return storable(_asked(lambda: error_name(type(error)), "name"), MAX_ERROR_NAME_CHARS)


def _text_of(error: BaseException) -> str:
    return _asked(lambda: str(error), "str()")


def _asked(ask: Callable[[], str], what: str) -> str:
    """What an error's class answers; its own methods may raise anything, `SystemExit` too."""
    try:
        return ask()
    except BaseException as broken:  # noqa: BLE001
        return f"<{what} failed: {type(broken).__name__}>"


def _traceback(error: BaseException) -> str:
    text = _asked(lambda: _whole(error) if _is_bounded(error) else _latest_causes(error), "traceback")
    if len(text) > MAX_TRACEBACK_CHARS:
        text = "…\n" + text[-MAX_TRACEBACK_CHARS + 2 :]  # the end tells most
    return storable(text, MAX_TRACEBACK_CHARS)


def _is_bounded(error: BaseException) -> bool:
    """Whether the error and all that it names can be described: Python's own way to do it recurses, and has no end."""
    seen: dict[int, BaseException] = {}
    waiting = [error]
    while waiting and len(seen) <= MAX_ERRORS:
        each = waiting.pop()
        if id(each) not in seen:
            seen[id(each)] = each
            waiting += [other for other in (each.__cause__, each.__context__) if other is not None]
            if isinstance(each, BaseExceptionGroup):
                waiting += each.exceptions[: MAX_ERRORS + 1]
    return not waiting


def _whole(error: BaseException) -> str:
    told = TracebackException.from_exception(error)
    waiting = [told]
    while waiting:
        each = waiting.pop()
        each.stack = StackSummary.from_list([frame for frame in each.stack if not frame.filename.startswith(_OWN_CODE)])
        waiting += [other for other in (each.__cause__, each.__context__, *(each.exceptions or ())) if other]
    return "".join(told.format())


def _latest_causes(error: BaseException) -> str:
    """The error after its latest causes, in the order in which they happened, without sub-exceptions."""
    causes = list(_causes(error))
    texts = [_one(each) for each in reversed(causes)]
    return "… earlier errors and sub-exceptions are left out\n\n" + "\nThen:\n\n".join(texts)


def _causes(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if each is None:
            return
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _one(error: BaseException) -> str:
    stack = StackSummary.extract(walk_tb(error.__traceback__), limit=-MAX_FRAMES)
    frames = [frame for frame in stack if not frame.filename.startswith(_OWN_CODE)]
    lines = StackSummary.from_list(frames).format()
    return "".join([*lines, f"{name_of(error)}: {storable(_text_of(error), _MAX_CAUSE_CHARS)}\n"])
