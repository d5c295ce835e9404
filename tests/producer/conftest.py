"""What the producer's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from holdfast.stores.open import open_store
from tests.maintenance.conftest import harness
from tests.producer.setting import Setting, Watched
from tests.worker.conftest import url

__all__ = ["harness", "setting", "url"]


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    monkeypatch.setattr("holdfast.app.open_store", lambda url: Watched(open_store(url)))
    with Holdfast("sqlite://") as app:
        yield Setting(app)
