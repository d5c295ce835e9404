"""Many waiting clients with real connections; `python -m chaos.waiting --clients 10000` is the same, larger."""

from __future__ import annotations

import logging

import pytest
from chaos.waiting import measure, server_for

pytestmark = [pytest.mark.alone, pytest.mark.long]

CLIENTS = 1_000
TASKS = 400


def test_one_task_wakes_one_of_a_thousand() -> None:
    with server_for(CLIENTS) as server:
        # They wait for longer than the test takes, so that each that polls was woken.
        figures = measure(server, CLIENTS, idle_seconds=2, tasks=TASKS, per_second=200, wait_seconds=600)
    logging.getLogger(__name__).info("%s", figures)
    assert figures.woken_by_one == 1
    assert len(figures.pickups_ms) == TASKS
    assert figures.wakeups <= TASKS
