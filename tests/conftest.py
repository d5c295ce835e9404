"""Settings that hold for all tests."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

from tests.support import ENCRYPTED, KEYS

# A busy machine is no reason to fail: hangs are caught by pytest's timeout, not by a deadline per example.
settings.register_profile("holdfast", deadline=None, print_blob=True)
settings.load_profile("holdfast")

# A shell without job control has what is in the background ignore interrupts, and our children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_settings_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    if ENCRYPTED:
        monkeypatch.setenv("HOLDFAST_KEYS", KEYS)
