"""SQL lives in files: loaded with the state machine rendered in from `core/lifecycle.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from holdfast.core import lifecycle
from holdfast.core.lifecycle import TRANSITIONS, Event
from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.task import FINAL_STATES, State
from holdfast.stores.contract import UPKEEP_BELL, UPKEEP_DUTY
from holdfast.stores.sqltext import render

_INCLUDE = re.compile(r"^-- include: (\S+)\n", re.MULTILINE)
_OLDEST_CODE = re.compile(r"\A-- oldest code: (\d+)\n")
_NAME = re.compile(r"(\d{4})_\w+\.sql")
#: A lane's floor is raised when it has fallen back by so much: seldom, since that is a write that all claimers share.
_FLOOR_STEP_MS: Final = 1_000

#: Those that the functions name.
_EVENTS: Final = (Event.ACK, Event.CANCEL, Event.EXPIRE, Event.PRIORITIZE, Event.REPLAY)

#: Plans are made once and kept, often while the tables are still empty: these keep them good when they have filled.
_PATH: Final = (
    "SET search_path = {schema}, pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off "
    "SET enable_mergejoin = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan"
)
_LOOK: Final = "SET search_path = {schema}, pg_catalog, pg_temp"


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of the schema."""

    number: int
    name: str
    #: The oldest version of the schema whose code still works after this step.
    oldest_code: int
    text: str


def migrations(schema: str) -> list[Migration]:
    """All steps, in order, for a schema of this name."""
    folder = files(__package__).joinpath("sql", "migrations")
    names = sorted(entry.name for entry in folder.iterdir() if _NAME.fullmatch(entry.name))
    return [_migration(name, schema) for name in names]


def _migration(name: str, schema: str) -> Migration:
    text = _read(f"migrations/{name}")
    found = _OLDEST_CODE.match(text)
    if found is None:
        raise ValueError(f"{name} does not say which code works with it")
    text = _INCLUDE.sub(lambda line: _read(line[1]), text)
    return Migration(int(name[:4]), name.removesuffix(".sql"), int(found[1]), rendered(text, schema))


def _read(name: str) -> str:
    return files(__package__).joinpath("sql", *name.split("/")).read_text("utf-8")


def rendered(text: str, schema: str) -> str:
    """The text for a schema of this name, with the state machine in it."""
    return render(render(text, **_machine()), schema=schema)


@cache
def _machine() -> dict[str, str]:
    """What the functions know of the state machine, as SQL."""
    return {
        "path": _PATH,
        "look": _LOOK,
        "moves": f"CASE state || ' ' || event {_moves()} END",
        "settlements": _list(lifecycle.SETTLEMENTS),
        "runs_again": _list(lifecycle.RUNS_AGAIN),
        "spares_attempt": _list(lifecycle.SPARES_ATTEMPT),
        "final_states": _list(FINAL_STATES),
        "scheduled_text": f"''{State.SCHEDULED}''",
        "retry_pending_text": f"''{State.RETRY_PENDING}''",
        "token": "(c.epoch || '.' || c.deliveries || '.' || c.claim_id)",
        "step_ms": str(AGED_STEP_MS),
        "floor_step_ms": str(_FLOOR_STEP_MS),
        "lowest": "'-9223372036854775808'",
        "lowest_id": "'00000000-0000-0000-0000-000000000000'::uuid",
        "upkeep_bell": f"'{UPKEEP_BELL}'",
        "upkeep_duty": f"'{UPKEEP_DUTY}'",
        **{event.value: f"'{event.value}'" for event in _EVENTS},
    }


def _moves() -> str:
    return " ".join(
        f"WHEN '{state.value} {event.value}' THEN '{'gone' if to is None else to.value}'"
        for (state, event), to in TRANSITIONS.items()
    )


def _list(members: Iterable[str]) -> str:
    return ", ".join(f"'{member}'" for member in sorted(members))
