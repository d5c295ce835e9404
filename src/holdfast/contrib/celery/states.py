"""Celery's names for the states of a task."""

from __future__ import annotations

from typing import Final

from holdfast.core.task import State

PENDING: Final = "PENDING"
RECEIVED: Final = "RECEIVED"
STARTED: Final = "STARTED"
SUCCESS: Final = "SUCCESS"
FAILURE: Final = "FAILURE"
REVOKED: Final = "REVOKED"
RETRY: Final = "RETRY"

READY_STATES: Final = frozenset({SUCCESS, FAILURE, REVOKED})
UNREADY_STATES: Final = frozenset({PENDING, RECEIVED, STARTED, RETRY})
EXCEPTION_STATES: Final = frozenset({RETRY, FAILURE, REVOKED})
PROPAGATE_STATES: Final = frozenset({FAILURE, REVOKED})
ALL_STATES: Final = READY_STATES | UNREADY_STATES

_NAMES: Final = {
    State.SUCCEEDED: SUCCESS,
    State.FAILED: FAILURE,
    State.DEAD_LETTERED: FAILURE,
    State.CANCELLED: REVOKED,
    State.RETRY_PENDING: RETRY,
    State.CLAIMED: STARTED,
}


def name_of(state: State) -> str:
    """Celery's name for a state of Holdfast's."""
    return _NAMES.get(state, PENDING)
