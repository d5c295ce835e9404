"""The first lines of a worker: the numbers in them."""

from __future__ import annotations

import logging

import pytest

from holdfast.worker.options import WorkerOptions
from holdfast.worker.protocol import Hello
from holdfast.worker.supervisor.banner import show_banner


@pytest.mark.parametrize(
    ("processes", "concurrency", "said"), [(1, 1, "1 process × 1 slot, "), (2, 30, "2 processes × 30 slots, ")]
)
def test_one_slot_is_one_slot(processes: int, concurrency: int, said: str, caplog: pytest.LogCaptureFixture) -> None:
    options = WorkerOptions(app="shop:app", processes=processes, concurrency=concurrency)
    with caplog.at_level(logging.INFO, "holdfast.worker"):
        show_banner(options, Hello("sqlite://", 30_000, ("send",)), ["default"], "sqlite://")
    assert any(message.startswith(said) for message in caplog.messages)
