"""What the producer's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from holdfast.stores.open import open_store
from tests.unit.producer.setting import Setting, Watched


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    monkeypatch.setattr("holdfast.app.open_store", lambda url: Watched(open_store(url)))
    monkeypatch.setattr("holdfast.producer.link._FIRST_PAUSE_SECONDS", 0.001)
    with Holdfast("sqlite://") as app:
        yield Setting(app)
