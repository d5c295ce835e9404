"""Lua lives in files: loaded once, with the state machine rendered in from `core/lifecycle.py`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from holdfast.core import lifecycle
from holdfast.core.lifecycle import TRANSITIONS, Event
from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.retry import DEAD_LETTER_TTL_MS, RESULT_TTL_MS
from holdfast.core.task import FINAL_STATES, HISTORY_LIMIT, State
from holdfast.stores.contract import MAINTENANCE, MAINTENANCE_WAKEUP, MAX_PAGE_BYTES
from holdfast.stores.sqltext import render

#: A wake-up that no worker takes is deleted after this long.
WAKEUP_MS: Final = 60_000
#: A claim with this lease, the default of an app, does not store it with its task.
DEFAULT_LEASE_MS: Final = 30_000
#: After a clock was set back, about this many claims are checked in one call for leases that lie too far ahead.
_CLAIMS_LOOKED_THROUGH: Final = 1_000
#: About this many counts of queues are looked through in one call of `promote`, to notify queues in which tasks wait.
_COUNTS_LOOKED_THROUGH: Final = 1_000
#: Records of discarded tasks in one partition; the oldest go first.
DISCARDS_LIMIT: Final = 10_000
#: What one script reads of tasks.
GET_BYTES: Final = 4 * 1024 * 1024
#: Tasks that one script of a search looks at.
FIND_TASKS: Final = 500

_INCLUDE = re.compile(r"^-- include: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--[^\n]*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One transition: its text, and the hash by which a server knows it."""

    name: str
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script of this name, ready to be sent."""
    text = _rendered(name)
    shebang, _, body = text.partition("\n")
    text = f"{shebang}\n{_COMMENT.sub('', body)}"
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _rendered(name: str) -> str:
    text = _INCLUDE.sub(lambda found: _rendered(found[1]) + "\n", _read(name))
    return render(text, **_machine())


def _read(name: str) -> str:
    return files("holdfast.stores.redis").joinpath("lua", f"{name}.lua").read_text("utf-8")


@cache
def _machine() -> dict[str, str]:
    """What the scripts know of the state machine, as Lua."""
    return {
        "moves": "{" + ", ".join(f"{event.value} = {_moves(event)}" for event in Event) + "}",
        "settlements": _set(lifecycle.SETTLEMENTS),
        "runs_again": _set(lifecycle.RUNS_AGAIN),
        "spares_attempt": _set(lifecycle.SPARES_ATTEMPT),
        "final_states": _set(FINAL_STATES),
        "may_expire": _moves(Event.EXPIRE),
        "spared_when_full": _set({State.FAILED, State.DEAD_LETTERED}),
        "result_ttl_ms": str(RESULT_TTL_MS),
        "dead_letter_ttl_ms": str(DEAD_LETTER_TTL_MS),
        "history_limit": str(HISTORY_LIMIT),
        "discards_limit": str(DISCARDS_LIMIT),
        "find_tasks": str(FIND_TASKS),
        "get_bytes": str(GET_BYTES),
        "page_bytes": str(MAX_PAGE_BYTES),
        "default_lease_ms": str(DEFAULT_LEASE_MS),
        "claims_looked_through": str(_CLAIMS_LOOKED_THROUGH),
        "counts_looked_through": str(_COUNTS_LOOKED_THROUGH),
        "wakeup_ms": str(WAKEUP_MS),
        "step_ms": str(AGED_STEP_MS),
        "maintenance_wakeup": f"'{MAINTENANCE_WAKEUP}'",
        "maintenance": f"'{MAINTENANCE}'",
    }


def _moves(event: Event) -> str:
    targets = {state: to for (state, known), to in TRANSITIONS.items() if known is event}
    return "{" + ", ".join(f"{state.value} = {_target(to)}" for state, to in targets.items()) + "}"


def _target(to: State | None) -> str:
    return "'gone'" if to is None else f"'{to.value}'"


def _set(members: Iterable[str]) -> str:
    return "{" + ", ".join(f"{member} = true" for member in sorted(members)) + "}"
