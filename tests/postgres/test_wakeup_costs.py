"""The measurement of wake-ups runs; `python -m chaos.wakeups --workers 500` is the same, larger."""

from __future__ import annotations

import logging

import pytest
from chaos.wakeups import Durations, measure, server_for

pytestmark = pytest.mark.long

WORKERS = 5
SHORT = Durations(settle_seconds=2, measure_seconds=2, round_seconds=0.5, rounds=1)


def test_idle_workers_and_producers_are_measured() -> None:
    with server_for(WORKERS) as server:
        figures = measure(server, WORKERS, SHORT)
    logging.getLogger(__name__).info("%s", figures)
    assert all(rate > 0 for rate in figures)
