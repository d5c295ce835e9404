"""Random calls through a server, compared with the model after every step."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.testing.kit.harness import SqliteHarness
from holdfast.testing.kit.model import state_machine
from tests.remote.harness import RemoteHarness
from tests.stores.test_model import EXAMPLES, PROFILE


@pytest.mark.long
@pytest.mark.timeout(900)
def test_store_behind_a_server_equals_the_model(tmp_path: Path) -> None:
    machine = state_machine(lambda: RemoteHarness(SqliteHarness(tmp_path)))
    run_state_machine_as_test(machine, settings=settings(PROFILE, max_examples=round(EXAMPLES * 0.05)))
