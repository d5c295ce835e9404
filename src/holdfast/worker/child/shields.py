"""Shields for code of the standard library that an interruption must not leave half done: forks."""

from __future__ import annotations

import _posixsubprocess
import functools
import os
import subprocess
from collections.abc import Callable
from typing import Any, Final

from holdfast.runtime.interrupts import shielded

#: All ways to fork in Python; `subprocess` has the last one under a name of its own.
_FORKS: Final = ((os, "fork"), (os, "forkpty"), (_posixsubprocess, "fork_exec"), (subprocess, "_fork_exec"))


def shield_forks() -> None:
    """Has an interruption wait for the end of a fork; to be called before the app is imported, which may take names.

    CPython ignores what is raised in a callback of `os.register_at_fork`: there an interruption would be lost, and the
    locks taken for the fork left held. A callback of ours could not prevent that, since those of other modules, such
    as `logging`, run before and after it, and its own first bytecode is too late. So the call itself is shielded.
    """
    for module, name in _FORKS:
        if (fork := getattr(module, name, None)) is not None:
            setattr(module, name, _shielded(fork))


def _shielded(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def shielded_call(*args: Any) -> Any:
        with shielded():
            return call(*args)

    return shielded_call
