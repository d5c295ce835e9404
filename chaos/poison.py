"""Tasks that break workers: each raises, returns or starts something that once left a run without an end.

Whatever such a task does, it ends in one of its own states within its attempts, and its neighbours never notice more
than the loss of a process.
"""

# ruff: noqa: D103  (the names of the functions say what they do)

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast import Cancel, Retry, Snooze, current
from holdfast.core.task import State

#: More than the interpreter's limit of recursion.
LINKS: Final = 3_000
#: Longer than the leases of the tests and of most chaos deployments.
BLOCKED_S: Final = 4.0
QUICK: Final = Retry(max_attempts=2, base="10ms", cap="20ms")
_DEAD: Final = frozenset({State.DEAD_LETTERED})
_CANCELLED: Final = frozenset({State.CANCELLED})
_SUCCEEDED: Final = frozenset({State.SUCCEEDED})


# -- errors that are hard to describe ------------------------------------------------------------------------


def _long_chain() -> Exception:
    last = ConnectionError("try 0")
    for number in range(1, LINKS):
        error = ConnectionError(f"try {number}")
        error.__cause__ = last
        last = error
    return last


def raises_a_long_chain() -> None:
    """As a reconnect loop does that raises each error from the one before."""
    raise _long_chain()


async def raises_a_long_chain_in_loop() -> None:
    raise _long_chain()


def raises_nested_groups() -> None:
    error: Exception = ValueError("innermost")
    for _ in range(LINKS):
        error = ExceptionGroup("around", [error])
    raise error


class _Later(Snooze):
    def __init__(self) -> None:
        """Without a delay: it does not call the `__init__` of its base."""


class _Never(Cancel):
    def __init__(self) -> None:
        """Without a reason, for the same cause."""


def raises_a_snooze_without_a_delay() -> None:
    raise _Later


async def returns_a_snooze_without_a_delay() -> Any:
    return _Later()


def raises_a_cancel_without_a_reason() -> None:
    raise _Never


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


def raises_what_has_no_text() -> None:
    raise _Unspeakable


async def raises_what_has_no_text_in_loop() -> None:
    raise _Unspeakable


class _Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in {"__module__", "__qualname__", "__name__", "__mro__"}:
            raise KeyboardInterrupt
        return super().__getattribute__(name)


class _NamelessError(Exception, metaclass=_Nameless):
    """Its class cannot even be named."""


def raises_what_has_no_name() -> None:
    raise _NamelessError


def returns_what_exits_when_encoded() -> Any:
    class Odd(dict[str, int]):
        def items(self) -> Any:
            raise SystemExit(4)

    return Odd(a=1)


# -- interruptions, exits and processes ----------------------------------------------------------------------


def logs_until_its_time_is_over() -> None:
    """The exception of its time limit comes somewhere inside of a log call."""
    while True:
        current().log.debug("still here")


async def exits_in_a_subtask() -> None:
    """Ends the event loop of its process while a thread lives on that is no daemon."""
    threading.Thread(target=time.sleep, args=(600,)).start()

    async def leaves() -> None:
        sys.exit(5)

    leaving = asyncio.create_task(leaves())
    await asyncio.wait([leaving], timeout=60)


async def interrupts_in_a_subtask() -> None:
    """The same by Ctrl-C, beside a job of the default executor."""
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)

    async def interrupts() -> None:
        raise KeyboardInterrupt

    leaving = asyncio.create_task(interrupts())
    await asyncio.wait([leaving], timeout=60)


def leaves_a_busy_pool() -> int:
    """At its end the block sends SIGTERM to processes that sleep, and waits for them."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map_async(time.sleep, [600, 600])
        return len(multiprocessing.active_children())


class TwoCopies(Exception):
    """Another run of this task, or what it has started, is still there."""


def runs_a_program(seconds: float = 0.5, directory: str | None = None) -> None:
    """A program that holds a lock for as long as it lives; a second copy beside it is an error in the history."""
    path = Path(directory or tempfile.gettempdir()) / f"holdfast-program-{current().task_id}"
    lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TwoCopies(current().task_id) from None
        program = subprocess.Popen(["sleep", str(seconds)], pass_fds=(lock,))  # noqa: S603, S607
        os.pwrite(lock, f"{program.pid:<10}".encode(), 0)
        program.wait()
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    finally:
        os.close(lock)


# -- claims that last, values that cannot be stored ----------------------------------------------------------


async def blocks_and_then_steps(seconds: float = BLOCKED_S) -> int:
    """Keeps its claim although nothing of the event loop runs for longer than a lease."""
    time.sleep(seconds)  # noqa: ASYNC251  (that is the point)
    if current().claim_lost:
        raise RuntimeError("the claim is called lost")
    current().raise_if_cancelled()

    async def step() -> int:
        return 1

    return await current().once(f"step-{current().task_id}", step)


def cancels_with_half_a_character() -> None:
    raise Cancel("user said \ud83d")


async def cancels_with_half_a_character_in_loop() -> Any:
    return Cancel("user said \ud83d")


def cancels_with_a_nul() -> None:
    raise Cancel("user said \0 and left")


def cancels_at_length() -> None:
    raise Cancel("x" * 5_000_000)


def fails_with_odd_text() -> None:
    raise ValueError("lone \ud800 and NUL \0")


def returns_nan_as_a_key() -> Any:
    return {float("nan"): 1}


def returns_half_a_character() -> Any:
    return {"text": "\ud83d"}


@dataclass(frozen=True, eq=False)
class Poison:
    """A function to be declared as a task, how, and the states in which its task may end."""

    function: Callable[..., Any]
    ends: frozenset[State] = _DEAD
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Takes its process along, so that its neighbours lose an attempt.
    kills_its_process: bool = False

    @property
    def name(self) -> str:
        """The name of its task type."""
        return self.function.__name__


POISONS: Final = (
    Poison(raises_a_long_chain),
    Poison(raises_a_long_chain_in_loop),
    Poison(raises_nested_groups),
    Poison(raises_a_snooze_without_a_delay),
    Poison(returns_a_snooze_without_a_delay),
    Poison(raises_a_cancel_without_a_reason, _CANCELLED),
    Poison(raises_what_has_no_text),
    Poison(raises_what_has_no_text_in_loop),
    Poison(raises_what_has_no_name),
    Poison(returns_what_exits_when_encoded, _DEAD | _SUCCEEDED),
    Poison(logs_until_its_time_is_over, options={"timeout": "200ms"}),
    Poison(exits_in_a_subtask, kills_its_process=True),
    Poison(interrupts_in_a_subtask, kills_its_process=True),
    Poison(leaves_a_busy_pool, _SUCCEEDED),
    Poison(runs_a_program, _SUCCEEDED),
    Poison(blocks_and_then_steps, _SUCCEEDED),
    Poison(cancels_with_half_a_character, _CANCELLED),
    Poison(cancels_with_half_a_character_in_loop, _CANCELLED),
    Poison(cancels_with_a_nul, _CANCELLED),
    Poison(cancels_at_length, _CANCELLED),
    Poison(fails_with_odd_text),
    Poison(returns_nan_as_a_key),
    Poison(returns_half_a_character),
)
